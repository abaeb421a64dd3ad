import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ptmjax.nn.norm import Norm
from ptmjax.types import UserError


def made(kind, eps, width=6):
    norm, rng = Norm(width, kind, eps, key=jax.random.key(0)), np.random.default_rng(1)
    norm.scale[...] = jnp.asarray(rng.normal(1, 0.5, width), jnp.float32)
    if norm.bias is not None:
        norm.bias[...] = jnp.asarray(rng.normal(0, 1, width), jnp.float32)
    return norm


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_layer_norm_is_torchs(eps, size):
    """Small values show the eps, large ones the way the variance is computed."""
    norm, x = made("layer", eps), np.random.default_rng(0).normal(0.3, size, (4, 5, 6)).astype(np.float32)
    t = lambda p: torch.from_numpy(np.array(p[...]))
    there = torch.nn.functional.layer_norm(torch.from_numpy(x), (6,), t(norm.scale), t(norm.bias), eps).numpy()
    np.testing.assert_allclose(norm(x), there, atol=2e-3 if size < 1e-3 else 2e-5)  # at 1e-4 the mean .3 costs 3 of 7 digits, there too


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm_is_torchs_and_has_no_bias(eps):
    norm, x = made("rms", eps), np.random.default_rng(0).normal(0.3, 1, (4, 5, 6)).astype(np.float32)
    there = torch.nn.functional.rms_norm(torch.from_numpy(x), (6,), torch.from_numpy(np.array(norm.scale[...])), eps).numpy()
    np.testing.assert_allclose(norm(x), there, atol=1e-6)
    assert norm.bias is None


def test_a_worked_number():
    y = Norm(2, "layer", 1.0, key=jax.random.key(0))(jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(y, [-(0.5**0.5), 0.5**0.5], rtol=1e-6)  # (x - 2) / sqrt(1 + eps)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_statistics_are_float32_whatever_the_compute_type(kind):
    """Values of 300 +- 3 have 8 bits in bfloat16: their variance in bfloat16 would be rubbish."""
    norm, x = made(kind, 1e-12, 64), jnp.asarray(np.random.default_rng(0).normal(300, 3, (5, 64)), jnp.bfloat16)
    y = norm(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, norm(x.astype(jnp.float32)).astype(jnp.bfloat16))


@pytest.mark.parametrize("eps", [0.0, -1e-6, float("nan")])
def test_an_eps_that_lets_zeros_through_is_refused(eps):
    """Zeros over their root mean square of 0 are no numbers."""
    with pytest.raises(UserError, match="eps is .*; it must be above 0"):
        Norm(4, "rms", eps, key=jax.random.key(0))
    assert (Norm(4, "rms", 1e-12, key=jax.random.key(0))(jnp.zeros(4)) == 0).all()


def test_a_misspelt_kind_names_the_choices():
    with pytest.raises(ValueError, match="'layernorm'.*'layer', 'rms'"):
        Norm(4, "layernorm", 1e-5, key=jax.random.key(0))
