"""Relative positions as scores to add: a layer for `Context.bias`.

B rows, L length, H heads, N buckets.
"""
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ptmjax.nn.linear import product
from ptmjax.nn.param import Init, param
from ptmjax.types import Array, Batch, UserError, at_least, constrain


def distances(buckets: int, reach: int) -> np.ndarray:
    """[reach + 1]: the bucket of every distance up to `reach`, which all longer ones share.

    The first half of the buckets hold a distance each; the rest grow by a constant factor. In float32, as the outside does it.
    """
    exact = buckets // 2
    if not 0 < exact < reach:
        raise UserError(f"{buckets} buckets of distances up to {reach}: give at least 2, and a reach above half of them")
    far = np.log(np.arange(exact, reach + 1, dtype=np.float32) / np.float32(exact))
    grown = exact + (far / np.float32(math.log(reach / exact)) * np.float32(buckets - exact)).astype(np.int32)
    return np.concatenate([np.arange(exact), np.minimum(grown, buckets - 1)]).astype(np.int32)


def bucket(offset: Array, buckets: int, reach: int, both: bool) -> Array:
    """int32 [...]: the bucket of a key's place minus the query's (Raffel et al. 2020, section 2.1).

    both: later keys have the upper half of the buckets; where not (a decoder), they all share bucket 0 with the own place.
    """
    half = buckets // 2 if both else buckets
    length = jnp.abs(offset) if both else jnp.maximum(-offset, 0)
    found = jnp.asarray(distances(half, reach))[jnp.minimum(length, reach)]
    return found + half * (offset > 0) if both else found


class Relative(nnx.Module):
    """Batch -> float32 [1, H, L, L]: a learned scalar a head for every bucket of distances (T5), the same in all layers that see it.

    Distances are those of places in the row; inside a packed example they are those of its positions too.
    """

    def __init__(self, heads: int, *, buckets: int = 32, reach: int = 128, both: bool = True, init: Init = "glorot", key: Array):
        at_least(1, heads=heads)
        distances(buckets // 2 if both else buckets, reach)  # a fault is told before the first batch
        self.reach, self.both = reach, both
        self.table = param(key, (buckets, heads), (None, "heads"), init)

    def __call__(self, batch: Batch) -> Array:
        length, table = batch["tokens"].shape[1], self.table[...].astype(jnp.float32)  # its gradient: a sum over rows, layers, places
        offset, buckets = jnp.arange(1 - length, length), len(table)
        # As a product: the gradient of a gather would be a scatter, slow and, on a GPU, not deterministic.
        scores = product(jax.nn.one_hot(bucket(offset, buckets, self.reach, self.both), buckets), table)
        return constrain(spread(scores.T), "heads", None, None)[None]


def spread(x: Array) -> Array:
    """[H, 2L - 1], by offset 1 - L ... L - 1 -> [H, L, L], by query and key.

    x with one place more has the period 2L; rows of 2L - 1 of it move by one each. So the gradient is a sum, not a scatter.
    """
    heads, length = len(x), (x.shape[1] + 1) // 2
    row = 2 * length - 1
    again = jnp.tile(jnp.pad(x, ((0, 0), (0, 1))), (1, length))
    return again[:, length - 1 : length - 1 + length * row].reshape(heads, length, row)[:, :, :length]
