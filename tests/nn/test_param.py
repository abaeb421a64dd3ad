import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.nn.param import draw, padded, param, rows


def test_a_number_is_a_normal_cut_at_two_deviations():
    x = np.asarray(draw(jax.random.key(0), (400, 300), 0.02))
    assert np.abs(x).max() <= 0.04 and np.abs(x).max() > 0.039
    assert x.std() == pytest.approx(0.02 * 0.8796, rel=0.01)  # of the cut normal: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) = .8796
    assert abs(x.mean()) < 2e-4


def test_fan_in_keeps_the_variance():
    assert np.asarray(draw(jax.random.key(0), (400, 300), "fan_in")).std() == pytest.approx(0.05, rel=0.01)
    assert np.asarray(draw(jax.random.key(0), (400, 300), "fan_in", fan_in=100)).std() == pytest.approx(0.1, rel=0.01)


def test_the_cut_normal_keeps_the_variance_too():
    x = np.asarray(draw(jax.random.key(0), (400, 300), "fan_in_cut"))
    assert x.std() == pytest.approx(0.05, rel=0.01) and np.abs(x).max() <= 2 * 0.05 / 0.8796


def test_glorot_and_normal():
    x = np.asarray(draw(jax.random.key(0), (400, 300), "glorot"))
    assert x.std() == pytest.approx((2 / 700) ** 0.5, rel=0.01) and np.abs(x).max() == pytest.approx((6 / 700) ** 0.5, rel=0.01)
    x = np.asarray(draw(jax.random.key(0), (400, 300), "normal"))
    assert x.std() == pytest.approx(1, rel=0.01) and np.abs(x).max() > 3


def test_constants():
    assert not np.asarray(draw(jax.random.key(0), (3, 2), "zeros")).any()
    assert (np.asarray(draw(jax.random.key(0), (3, 2), "ones")) == 1).all()


def test_a_misspelt_init_names_the_choices():
    with pytest.raises(ValueError, match="'fanin'.*'fan_in', .*'normal', 'ones', 'zeros'"):
        draw(jax.random.key(0), (3, 2), "fanin")


def test_every_axis_has_a_name():
    with pytest.raises(ValueError, match="1 axis names"):
        param(jax.random.key(0), (3, 2), ("embed",), "zeros")


def test_padding_is_marked_as_unused():
    assert param(jax.random.key(0), (256, 3), ("vocab", "embed"), 0.02, real=131).get_metadata("unused") == 125 * 3
    assert param(jax.random.key(0), (256, 3), ("vocab", "embed"), 0.02).get_metadata("unused") == 0


@pytest.mark.parametrize("size, rows", [(1, 128), (128, 128), (129, 256), (30522, 30592), (32100, 32128)])
def test_vocabularies_are_padded_to_128(size, rows):
    assert padded(size) == rows


def test_the_gradient_of_a_frequent_row_adds_up_in_float32():
    """8192 times the row 1, as of a token type; a sum in bfloat16 stands still at 128."""
    where = jnp.ones((64, 128), int)
    found = jax.jit(jax.grad(lambda table: (rows(table.astype(jnp.bfloat16), where).astype(jnp.float32) * 0.37).sum()))(jnp.zeros((3, 2)))
    np.testing.assert_allclose(found, [[0, 0], [8192 * 0.37] * 2, [0, 0]], rtol=0.01)
    table = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(rows(table, jnp.array([[2, 0]])), table[jnp.array([[2, 0]])])
    assert rows(table.astype(jnp.bfloat16), where).dtype == jnp.bfloat16
