import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.nn.linear import Linear, add


def test_it_is_a_product_and_a_bias():
    layer = Linear(3, 5, ("embed", "mlp"), key=jax.random.key(0))
    layer.bias[...] = np.arange(5.0)
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(layer(x), x @ np.asarray(layer.kernel[...]) + np.arange(5.0), rtol=1e-6)
    assert layer.kernel.get_metadata("out_sharding") == ("embed", "mlp") and layer.bias.get_metadata("out_sharding") == ("mlp",)


def test_without_bias_there_is_no_parameter():
    layer = Linear(3, 5, ("embed", "mlp"), bias=False, key=jax.random.key(0))
    assert layer.bias is None and not np.asarray(layer(np.zeros((2, 3), np.float32))).any()


def test_a_misspelt_init_is_refused():
    with pytest.raises(ValueError, match="'zero'.*'zeros'"):
        Linear(3, 5, ("embed", "mlp"), init="zero", key=jax.random.key(0))


def test_the_gradient_of_a_bias_adds_up_in_float32():
    """Over 8192 places; a sum in bfloat16 stands still at 1024 (as plain x + bias does on a CPU)."""
    x = jnp.ones((64, 128, 3), jnp.bfloat16)
    found = jax.jit(jax.grad(lambda bias: (add(x, bias.astype(jnp.bfloat16)).astype(jnp.float32) * 0.37).sum()))(jnp.zeros(3))
    np.testing.assert_allclose(found, 8192 * 0.37, rtol=0.01)
    assert found.dtype == jnp.float32 and add(x, jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


def test_the_gradient_of_a_bias_is_the_sum_over_all_places():
    x, dy = np.random.default_rng(0).normal(size=(2, 4, 5, 3)).astype(np.float32)
    _, pull = jax.vjp(add, jnp.asarray(x), jnp.ones(3))
    dx, dbias = pull(jnp.asarray(dy))
    np.testing.assert_allclose(dbias, dy.sum((0, 1)), rtol=1e-5)
    assert (np.asarray(dx) == dy).all()
