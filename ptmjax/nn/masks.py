"""Who sees whom: functions batch -> See or bool [B, L, M] (query i, key j), joined by `&` and `|`.

Segments keep packed examples apart and hide padding: a padded position sees nothing and is seen by nobody.
B rows, L queries, M keys (L again, or the length of the encoder's side).
"""
import dataclasses

import jax.numpy as jnp

from ptmjax.types import LEFT_TO_RIGHT, RIGHT_TO_LEFT, SEQ2SEQ, Array, Batch, pytree


@pytree
class See:
    """A query sees a key of its own segment, where `causal` none after its own place, and only where `rest` lets it.

    Not a square array: the kernels of accelerators want segments and causality apart (nn/kernels.py), and dense() makes the array
    for the others, inside the layer. `&` keeps that form; `|` gives the array.
    """

    queries: Array  # [B, L] int32 segments; 0 sees nothing
    keys: Array  # [B, M] int32 segments; 0 is seen by nobody
    rest: Array | None = None  # bool, broadcast to [B, L, M]; None for all
    causal: bool = dataclasses.field(default=False, metadata={"static": True})

    __array_ufunc__ = None  # so that numpy leaves `array & see` to __rand__

    def dense(self) -> Array:
        """bool [B, L, M]."""
        q, k = self.queries, self.keys
        see = (q[:, :, None] == k[:, None, :]) & (k > 0)[:, None, :]
        if self.causal:
            see = see & (jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1]))
        return see if self.rest is None else see & self.rest

    def __and__(self, other: "See | Array") -> "See":
        same = isinstance(other, See) and self.queries is other.queries and self.keys is other.keys  # of one batch
        more = other.rest if same else dense(other)
        rest = more if self.rest is None else self.rest if more is None else self.rest & more
        return dataclasses.replace(self, rest=rest, causal=self.causal or same and other.causal)

    def __or__(self, other: "See | Array") -> Array:
        return self.dense() | dense(other)

    __rand__, __ror__ = __and__, __or__


def dense(see: See | Array) -> Array:
    """bool [B, L, M], of whatever a function of this file or of a user gives."""
    return see.dense() if isinstance(see, See) else see


def full(batch: Batch) -> See:
    """All positions of the same example."""
    return See(batch["segments"], batch["segments"])


def causal(batch: Batch) -> See:
    """Positions of the same example up to one's own."""
    return See(batch["segments"], batch["segments"], causal=True)


def own(batch: Batch) -> See:
    """One's own position only: the control run that cannot learn from context."""
    return full(batch) & jnp.eye(batch["segments"].shape[1], dtype=bool)


def patterns(batch: Batch) -> See:
    """Of each row that of its `pattern` (UniLM, Dong et al. 2019, figure 1): all; up to one's own place; from there on; or (seq2seq) the
    source, whose types are not the last of the row's real places, and of the target up to one's own place. A row of one type is source."""
    see, p = full(batch), batch["pattern"][:, None, None]
    length = batch["segments"].shape[1]
    query, key, types = jnp.arange(length)[:, None], jnp.arange(length), batch["types"]
    first = types == types[:, :1]
    rest = jnp.where(p == LEFT_TO_RIGHT, key <= query, jnp.where(p == RIGHT_TO_LEFT, key >= query, True))
    return see & jnp.where(p == SEQ2SEQ, first[:, None, :] | (key <= query) & ~first[:, :, None], rest)


def given(batch: Batch) -> Array:
    """The batch's own `visible` (permutation, prefix and other patterns made by a corruption)."""
    return batch["visible"]


def cross(batch: Batch) -> See:
    """[B, L, S]: a decoder position sees the encoder positions of its own example."""
    return See(batch["segments"], batch["encoded_segments"])


def nothing(batch: Batch) -> See:
    """[B, L, S]: a decoder that sees nothing of the encoder: the control run that knows the targets' own law alone."""
    return See(batch["segments"], jnp.zeros_like(batch["encoded_segments"]))
