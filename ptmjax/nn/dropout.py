"""Dropout whose bits depend on (key, row number, place in the row): equal for every mesh and micro-batching."""
import jax
import jax.numpy as jnp

from ptmjax.types import Array, Key


def dropout(x: Array, rate: float, key: Key | None) -> Array:
    """[B, ...]: keeps a value with probability 1 - rate and scales it up; key None (evaluation) keeps all."""
    if key is None or rate == 0:
        return x
    keep = key.each(lambda k: jax.random.bernoulli(k, 1 - rate, x.shape[1:]))
    return jnp.where(keep, x / (1 - rate), 0)
