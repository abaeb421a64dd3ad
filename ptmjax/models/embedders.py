"""From a batch to the initial state: a sum of named parts.

B rows, L length, D width, V vocabulary.
"""
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.nn.dropout import check_rate, dropout
from ptmjax.nn.norm import Norm
from ptmjax.nn.param import Init, padded, param, rows
from ptmjax.nn.positions import positions
from ptmjax.types import INT32, Array, Batch, Key, UserError, at_least, at_most, constrain


class Table(nnx.Module):
    """batch[feature] [B, L] -> [B, L, D]. A vocabulary is padded to a multiple of 128; small tables (types) are not."""

    def __init__(self, feature: str, size: int, width: int, *, vocabulary: bool = True, init: Init = 0.02, key: Array):
        at_least(1, size=size, width=width)
        at_most(INT32, size=size)
        self.feature, self.axis = feature, "vocab" if vocabulary else None
        self.table = param(key, (padded(size) if vocabulary else size, width), (self.axis, "embed"), init, real=size)

    def __call__(self, batch: Batch) -> Array:
        # Gathering from a table that is sharded on both axes makes XLA rematerialise it: gather the embed axis first.
        return rows(constrain(self.table[...], self.axis, None), batch[self.feature])


class Positions(nnx.Module):
    """Learned absolute positions: [1 or B, L, D] from a table of offset + `length` rows, for rows of up to `length` tokens.

    offset: of the first place, with which a packed example begins too; padding is then at offset - 1. RoBERTa counts so, from the id
    of its pad on: pad 1, offset 2, 512 places in 514 rows (fairseq's make_positions). Departure: fairseq's row of padding, here and in
    the table of tokens, is 0 and stays so; here it has an initial value like all others, which nothing sees and no gradient moves.
    """

    def __init__(self, length: int, width: int, *, offset: int = 0, init: Init = 0.02, key: Array):
        at_least(1, length=length, width=width)
        at_least(0, offset=offset)
        self.offset = offset
        self.table = param(key, (offset + length, width), (None, "embed"), init)

    def __call__(self, batch: Batch) -> Array:
        length, table = batch["tokens"].shape[1], self.table[...]
        if self.offset + length > len(table):
            has = f"{len(table)} rows" + (f", of which {self.offset} lie before the first token" if self.offset else "")
            raise UserError(f"the batch is {length} tokens long but the position table has {has}: raise Positions.length")
        where = positions(batch)
        if self.offset:
            where = jnp.where(batch["segments"] > 0, self.offset + where, self.offset - 1)
        return rows(constrain(table, None, None), where)


class Embedder(nnx.Module):
    """The sum of `parts` (each batch -> [B, L, D]), then norm (None: none) and dropout."""

    def __init__(self, parts: Mapping[str, Callable], width: int, *, norm: str | None = "layer", eps: float = 1e-12, rate: float = 0.1,
                 key: Array):
        at_least(1, parts=len(parts))
        check_rate(rate=rate)
        keys = jax.random.split(key, len(parts) + 1)
        self.parts = nnx.Dict({name: part(key=k) for (name, part), k in zip(sorted(parts.items()), keys)})
        self.norm = None if norm is None else Norm(width, norm, eps, key=keys[-1])
        self.rate = rate

    def __call__(self, batch: Batch, key: Key | None) -> Array:
        found = [part(batch) for part in self.parts.values()]
        x = sum(x.astype(jnp.float32) for x in found).astype(found[0].dtype)  # gradients of positions sum over rows, in float32
        return constrain(dropout(x if self.norm is None else self.norm(x), self.rate, key), "batch", None, None)
