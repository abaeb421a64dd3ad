import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ptmjax.nn.dropout import dropout
from ptmjax.nn.mlp import ACTIVATIONS, Mlp, activation
from ptmjax.types import Key

TORCH = {"gelu": torch.nn.functional.gelu, "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
         "relu": torch.relu, "silu": torch.nn.functional.silu, "tanh": torch.tanh}


def test_every_activation_is_torchs():
    assert set(ACTIVATIONS) == set(TORCH)
    x = np.linspace(-6, 6, 201, dtype=np.float32)
    for name, f in TORCH.items():
        np.testing.assert_allclose(activation(name)(x), f(torch.from_numpy(x)).numpy(), atol=2e-6, err_msg=name)


def test_the_two_forms_of_gelu_differ():
    assert float(activation("gelu")(1.0)) == pytest.approx(0.841345, abs=2e-6)
    assert float(activation("gelu_tanh")(1.0)) == pytest.approx(0.841192, abs=2e-6)


@pytest.mark.parametrize("act", ["glu", "gated_gleu", "gelu_gated"])
def test_a_misspelt_activation_names_the_choices(act):
    with pytest.raises(ValueError, match="'gelu', 'gelu_tanh', 'relu', 'silu', 'tanh'"):
        Mlp(4, 6, act, key=jax.random.key(0))


def test_plain_and_gated():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    plain = Mlp(4, 6, "relu", init=1.0, key=jax.random.key(0))
    np.testing.assert_allclose(plain(x), plain.wo(jax.nn.relu(plain.wi(x))), rtol=1e-6)
    assert plain.gate is None
    gated = Mlp(4, 6, "gated_silu", bias=False, init=1.0, key=jax.random.key(0))
    wi, wg, wo = (np.asarray(p.kernel[...]) for p in (gated.wi, gated.gate, gated.wo))
    np.testing.assert_allclose(gated(x), (jax.nn.silu(x @ wg) * (x @ wi)) @ wo, rtol=1e-4, atol=1e-5)


def test_dropout_works_on_the_hidden_values():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)
    mlp, key = Mlp(4, 6, "gated_relu", rate=0.5, init=1.0, key=jax.random.key(0)), Key(jax.random.key(1), jnp.arange(2))
    h = jax.nn.relu(mlp.gate(x)) * mlp.wi(x)
    np.testing.assert_allclose(mlp(x, key), mlp.wo(dropout(h, 0.5, key)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mlp(x), mlp.wo(h))
    assert np.abs(np.asarray(mlp(x, key)) - mlp(x)).max() > 0.1


@pytest.mark.parametrize("act, kept", [("gelu", 1), ("gated_gelu", 2)])
def test_what_its_gradient_keeps_is_the_hidden_values_before_the_activation(act, kept):
    mlp, key = Mlp(4, 6, act, rate=0.5, init=1.0, key=jax.random.key(0)), Key(jax.random.key(1), jnp.arange(2))
    _, pull = jax.vjp(lambda x: mlp(x, key), jnp.ones((2, 3, 4)))
    assert [x.shape for x in jax.tree.leaves(pull)].count((2, 3, 6)) == kept
