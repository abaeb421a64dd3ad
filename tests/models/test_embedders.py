import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.types import Key, UserError

part = functools.partial
BATCH = {"tokens": jnp.array([[5, 130, 0], [1, 2, 3]]), "types": jnp.array([[0, 1, 2], [2, 0, 0]])}


def test_a_vocabulary_is_padded_and_a_small_table_is_not():
    words, types = Table("tokens", 131, 6, key=jax.random.key(0)), Table("types", 3, 6, vocabulary=False, key=jax.random.key(0))
    assert words.table.shape == (256, 6) and words.table.get_metadata("out_sharding") == ("vocab", "embed")
    assert types.table.shape == (3, 6) and types.table.get_metadata("out_sharding") == (None, "embed")
    np.testing.assert_array_equal(words(BATCH), np.asarray(words.table[...])[np.asarray(BATCH["tokens"])])
    np.testing.assert_array_equal(types(BATCH), np.asarray(types.table[...])[np.asarray(BATCH["types"])])


def test_positions_count_up_or_are_the_batchs():
    layer = Positions(4, 6, key=jax.random.key(0))
    table = np.asarray(layer.table[...])
    np.testing.assert_array_equal(layer(BATCH), table[None, :3])
    np.testing.assert_array_equal(layer(BATCH | {"positions": jnp.array([[0, 1, 0], [0, 0, 1]])}), table[[[0, 1, 0], [0, 0, 1]]])


def test_a_batch_longer_than_the_table_is_a_user_error():
    with pytest.raises(UserError, match="the batch is 3 tokens long but the position table has 2 rows: raise Positions.length"):
        Positions(2, 6, key=jax.random.key(0))(BATCH)


def test_positions_behind_those_of_pad():
    """Pitfall 36: RoBERTa's begin at pad + 1; padding is at pad, a packed example begins at 2 again."""
    layer = Positions(512, 6, offset=2, key=jax.random.key(0))
    table = np.asarray(layer.table[...])
    assert table.shape == (514, 6)
    batch = {"tokens": jnp.array([[0, 5, 6, 2, 1, 1]]), "segments": jnp.array([[1, 1, 1, 1, 0, 0]])}
    np.testing.assert_array_equal(layer(batch), table[[[2, 3, 4, 5, 1, 1]]])
    packed = batch | {"segments": jnp.array([[1, 1, 2, 2, 2, 0]]), "positions": jnp.array([[0, 1, 0, 1, 2, 0]])}
    np.testing.assert_array_equal(layer(packed), table[[[2, 3, 2, 3, 4, 1]]])
    whole = lambda n: {"tokens": jnp.zeros((1, n), int), "segments": jnp.ones((1, n), int)}
    np.testing.assert_array_equal(layer(whole(512)), table[None, 2:])
    with pytest.raises(UserError, match="513 tokens long but the position table has 514 rows, of which 2 lie before the first token"):
        layer(whole(513))
    with pytest.raises(UserError, match="offset is -1; it must be at least 0"):
        Positions(4, 6, offset=-1, key=jax.random.key(0))


def test_the_embedder_sums_norms_and_drops():
    parts = {"tokens": part(Table, "tokens", 131, 6, init=1.0), "types": part(Table, "types", 3, 6, vocabulary=False, init=1.0)}
    make = lambda **options: Embedder(parts, 6, key=jax.random.key(0), **options)
    plain, normed = make(norm=None), make(norm="rms", eps=1e-6)
    total = plain.parts["tokens"](BATCH) + plain.parts["types"](BATCH)
    np.testing.assert_allclose(plain(BATCH, None), total, rtol=1e-6)
    np.testing.assert_allclose(normed(BATCH, None), normed.norm(total), rtol=1e-6)
    key = Key(jax.random.key(0), jnp.arange(2))
    dropped = np.asarray(make(norm=None, rate=0.5)(BATCH, key))
    np.testing.assert_allclose(dropped[dropped != 0], 2 * np.asarray(total)[dropped != 0], rtol=1e-6)
    assert 0.2 < (dropped == 0).mean() < 0.8


def test_the_order_of_the_parts_does_not_matter():
    a, b = part(Table, "tokens", 131, 6), part(Table, "types", 3, 6, vocabulary=False)
    one, two = (Embedder(parts, 6, key=jax.random.key(0)) for parts in ({"a": a, "b": b}, {"b": b, "a": a}))
    np.testing.assert_array_equal(one(BATCH, None), two(BATCH, None))


def test_the_gradient_of_positions_adds_up_over_rows_in_float32():
    """A position has one place in each of 4096 rows."""
    parts = {"tokens": part(Table, "tokens", 131, 2), "positions": part(Positions, 3, 2)}
    layer, batch = Embedder(parts, 2, norm=None, key=jax.random.key(0)), {"tokens": jnp.zeros((4096, 3), int)}

    def total(layer):
        x = jax.tree.map(lambda p: p.astype(jnp.bfloat16), layer)(batch, None)
        assert x.dtype == jnp.bfloat16
        return (x.astype(jnp.float32) * 0.37).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(total))(layer).parts["positions"].table[...], 4096 * 0.37, rtol=0.01)


def test_an_embedder_of_no_parts_is_refused():
    with pytest.raises(UserError, match="parts is 0; it must be at least 1"):
        Embedder({}, 6, key=jax.random.key(0))
