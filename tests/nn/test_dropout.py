import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.nn.dropout import bits, dropout
from ptmjax.types import Key, UserError


def key(*rows, seed=0):
    return Key(jax.random.key(seed), jnp.array(rows, jnp.int32))


def test_no_key_or_no_rate_is_the_identity():
    x = jnp.arange(6.0).reshape(2, 3)
    assert dropout(x, 0.5, None) is x and dropout(x, 0.0, key(0, 1)) is x


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_mean_stays_and_the_share_is_the_rate(rate):
    y, n = np.asarray(dropout(jnp.ones((64, 100, 50)), rate, key(*range(64)))), 320_000
    deviation = (rate * (1 - rate) / n) ** 0.5
    assert (y == 0).mean() == pytest.approx(rate, abs=4 * deviation)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)
    assert y.mean() == pytest.approx(1, abs=4 * deviation / (1 - rate))
    assert y.var() == pytest.approx(rate / (1 - rate), rel=0.02)


def test_rows_and_places_are_independent():
    """Shares over rows, and over places, are binomial: their variance is that of independent draws."""
    kept = np.asarray(dropout(jnp.ones((400, 400)), 0.3, key(*range(400)))) > 0
    for axis in (0, 1):
        assert kept.mean(axis).var() == pytest.approx(0.3 * 0.7 / 400, rel=0.3)
    assert abs(np.corrcoef(kept[:-1].ravel(), kept[1:].ravel())[0, 1]) < 0.01


def standard(key, rate, shape):
    """Whether dropped, with mean 0 and variance 1 if the draws are Bernoulli(rate)."""
    dropped = np.asarray(bits(key, shape)) < rate * 2**32
    return (dropped - rate) / (rate * (1 - rate)) ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_neighbours_in_every_direction_and_keys_are_independent(rate):
    """Correlations of 10^6 pairs each are within 4.5 of their standard deviations; so are those of triples along a row."""
    z = standard(key(*range(64)), rate, (64, 256))
    pairs = [(z[:, :, k:], z[:, :, :-k]) for k in (1, 2, 4, 64, 128)] + [(z[:, k:], z[:, :-k]) for k in (1, 8)]
    pairs += [(z[k:], z[:-k]) for k in (1, 2, 32)] + [(z[:, :, 2:] * z[:, :, 1:-1], z[:, :, :-2])]
    others = [key(*range(64)).fold(name) for name in (0, 1, "mlm", "probs")] + [key(*range(64), seed=s) for s in (1, 2, 256)]
    pairs += [(z, standard(other, rate, (64, 256))) for other in others]
    off = [abs((a * b).mean()) * a.size**0.5 for a, b in pairs]
    assert max(off) < 4.5, off


def test_bytes_are_uniform_and_layers_uncorrelated():
    """Chi-square of every byte; and of 100 layers' masks, no two correlate more than the largest of 4950 normal draws would."""
    x = np.asarray(bits(key(*range(64)), (64, 256)))
    for shift in (0, 8, 16, 24):
        counts = np.bincount(((x >> shift) & 255).ravel(), minlength=256)
        z = (((counts - x.size / 256) ** 2 / (x.size / 256)).sum() - 255) / 510**0.5
        assert abs(z) < 4.5
    layers = np.stack([standard(key(0, 1, 2, 3).fold(i), 0.1, (1024,)).ravel() for i in range(100)])
    c = np.corrcoef(layers)[~np.eye(100, dtype=bool)]
    assert np.abs(c).max() * 4096**0.5 < 5.5


@settings(max_examples=20)
@given(st.permutations(range(8)), st.sampled_from([1, 2, 8]))
def test_bits_go_with_the_row_whatever_rows_it_stands_among(rows, n):
    whole = dropout(jnp.ones((8, 5, 3)), 0.5, key(*range(8)))
    np.testing.assert_array_equal(dropout(jnp.ones((n, 5, 3)), 0.5, key(*rows[:n])), whole[np.array(rows[:n])])


def test_bits_do_not_depend_on_the_mesh():
    x, k = jnp.ones((8, 4, 6)), key(*range(8))
    whole = np.asarray(dropout(x, 0.5, k))
    for shape, spec in [((8, 1), P("a")), ((4, 2), P("a", None, "b"))]:
        mesh = Mesh(np.array(jax.devices()).reshape(shape), ("a", "b"))
        held = jax.device_put(x, NamedSharding(mesh, spec))
        np.testing.assert_array_equal(jax.jit(lambda x, k: dropout(x, 0.5, k))(held, k), whole)


def test_another_seed_or_name_gives_other_bits():
    x = jnp.ones((4, 50))
    masks = [np.asarray(dropout(x, 0.5, k)) for k in (key(0, 1, 2, 3), key(0, 1, 2, 3, seed=1), key(0, 1, 2, 3).fold("a"), key(4, 5, 6, 7))]
    assert all((a != b).mean() > 0.3 for i, a in enumerate(masks) for b in masks[:i])


def test_the_gradient_is_scaled_as_the_value():
    y, g = jax.vjp(lambda x: dropout(x, 0.5, key(0, 1)), jnp.ones((2, 20)))
    np.testing.assert_array_equal(g(jnp.ones((2, 20)))[0], y)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_a_rate_that_is_no_rate(rate):
    with pytest.raises(UserError, match="rate"):
        dropout(jnp.ones((2, 3)), rate, key(0, 1))


def test_the_type_stays():
    assert dropout(jnp.ones((2, 3), jnp.bfloat16), 0.1, key(0, 1)).dtype == jnp.bfloat16


def test_a_rate_next_to_one_drops_all_but_nothing_overflows():
    x = dropout(jnp.ones((2, 50)), 1 - 1e-12, Key(jax.random.key(0), jnp.arange(2)))
    assert not np.asarray(x).any()
