import jax
import numpy as np
import pytest

from ptmjax.nn.linear import Linear


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
