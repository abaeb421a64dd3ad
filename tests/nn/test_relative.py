import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from ptmjax.nn.relative import Relative, bucket, spread

OFFSETS = np.arange(-600, 601)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 12), (64, 128), (32, 512)])
def test_buckets_are_those_of_transformers(both, buckets, reach):
    there = T5Attention._relative_position_bucket(torch.from_numpy(OFFSETS), both, buckets, reach).numpy()
    np.testing.assert_array_equal(bucket(jnp.asarray(OFFSETS), buckets, reach, both), there)
    assert there.min() == 0 and there.max() == buckets - 1


def test_worked_rows():
    row = lambda i, both: bucket(jnp.arange(10) - i, 32, 128, both).tolist()
    assert row(0, True) == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24] and row(9, True) == [8, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert row(0, False) == [0] * 10 and row(9, False) == list(range(9, -1, -1))
    assert bucket(jnp.array([200, -200]), 32, 128, True).tolist() == [31, 15]


@pytest.mark.parametrize("length", [1, 2, 7])
def test_spread_puts_every_offset_on_its_diagonal(length):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2 * length - 1)), jnp.float32)
    at = np.arange(length)
    want = np.asarray(x)[:, at[None, :] - at[:, None] + length - 1]
    np.testing.assert_array_equal(spread(x), want)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=want.shape), jnp.float32)
    gather = lambda x: (x[:, at[None, :] - at[:, None] + length - 1] * weight).sum()
    np.testing.assert_allclose(jax.grad(lambda x: (spread(x) * weight).sum())(x), jax.grad(gather)(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("both", [True, False])
def test_the_layer_looks_up_the_bucket_of_every_pair(both):
    layer = Relative(3, buckets=8, reach=12, both=both, key=jax.random.key(0))
    at = jnp.arange(17)
    want = layer.table[...][bucket(at[None, :] - at[:, None], 8, 12, both)]
    out = layer({"tokens": jnp.zeros((2, 17), int)})
    np.testing.assert_allclose(out, jnp.moveaxis(want, -1, 0)[None], rtol=1e-6)
    assert out.shape == (1, 3, 17, 17) and layer.table.shape == (8, 3)


@pytest.mark.parametrize("both", [True, False])
def test_the_tables_gradient_adds_up_over_layers_and_places_in_float32(both):
    """Scores of 512 x 512, whose gradient in the last of 24 layers is 1 and in the others .003: in bfloat16 those are lost beside
    the 1, 6.5 % of all. What is left is the one rounding of a table that is seen in bfloat16, 2^-9."""
    layer, pulls = Relative(2, both=both, key=jax.random.key(0)), jnp.full(24, 0.003).at[-1].set(1)

    def loss(layer):
        bias = jax.tree.map(lambda p: p.astype(jnp.bfloat16), layer)({"tokens": jnp.zeros((1, 512), int)})
        return jax.lax.scan(lambda total, pull: (total + (bias * pull).sum(), None), 0.0, pulls)[0]

    at = jnp.arange(512)
    counts = np.bincount(np.asarray(bucket(at[None, :] - at[:, None], 32, 128, both)).ravel(), minlength=32)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(layer).table[...], np.repeat(counts[:, None] * 1.069, 2, 1), rtol=2.0**-8)


def test_the_initial_law_is_t5s():
    """Uniform, with variance 2 / (buckets + heads)."""
    x = np.asarray(Relative(200, buckets=300, reach=1000, key=jax.random.key(0)).table[...])
    assert x.std() == pytest.approx((2 / 500) ** 0.5, rel=0.01) and np.abs(x).max() <= (6 / 500) ** 0.5


@pytest.mark.parametrize("options", [{"buckets": 2}, {"buckets": 32, "reach": 8}, {"buckets": 1, "both": False}])
def test_too_few_buckets_are_refused(options):
    with pytest.raises(ValueError, match="buckets of distances up to"):
        Relative(2, **options, key=jax.random.key(0))
