import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptmjax.nn.positions import positions, rotary_angles, rotate

RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, 1, 1, 3, 8)).astype(np.float32)  # [B, L, H, K] each


def product(i: int, j: int, size: int = 8) -> np.ndarray:
    """[H]: q turned to position i times k turned to position j."""
    at = lambda x, p: rotate(jnp.asarray(x), rotary_angles(jnp.array([[p]]), size))
    return np.asarray((at(Q, i) * at(K, j)).sum(-1)[0, 0])


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 300))
def test_only_the_distance_counts(i, j, shift):
    np.testing.assert_allclose(product(i, j), product(i + shift, j + shift), atol=2e-3)  # angles of 500 radians: 3e-5 each in float32


def test_the_distance_does_count():
    assert np.abs(product(3, 3) - product(3, 5)).max() > 0.1


def test_it_is_multiplication_by_a_unit_complex_number():
    where = jnp.array([[0, 1, 7]])
    x = RNG.normal(size=(1, 3, 2, 6)).astype(np.float32)
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * np.array([0, 1, 7])[None, :, None, None] * 100.0 ** (-np.arange(3) / 3))
    y = rotate(jnp.asarray(x), rotary_angles(where, 6, base=100.0))
    np.testing.assert_allclose(y, np.concatenate([turned.real, turned.imag], -1), atol=1e-5)
    np.testing.assert_array_equal(y[:, 0], x[:, 0])  # position 0 does not turn


def test_the_type_stays_and_angles_are_float32():
    angles = rotary_angles(jnp.array([[1001]]), 8)
    assert angles.dtype == jnp.float32 and rotate(jnp.asarray(Q, jnp.bfloat16), angles).dtype == jnp.bfloat16


def test_an_odd_head_size_is_refused():
    with pytest.raises(ValueError, match="even head size, not 7"):
        rotary_angles(jnp.array([[0]]), 7)


def test_positions_are_the_batchs_or_count_up():
    np.testing.assert_array_equal(positions({"tokens": jnp.zeros((2, 3), int)}), [[0, 1, 2]])
    np.testing.assert_array_equal(positions({"tokens": jnp.zeros((1, 3), int), "positions": jnp.array([[0, 1, 0]])}), [[0, 1, 0]])
