"""Dropout whose bits depend on (key, row number, place in the row): equal for every mesh and micro-batching.

B rows.
"""
import math

import jax
import jax.numpy as jnp

from ptmjax.types import Array, Key, UserError

GOLDEN = 0x9E3779B9  # 2^32 / golden ratio


def mix(x: Array) -> Array:
    """A bijection of uint32 in which every input bit moves every output bit (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def bits(key: Key, shape: tuple[int, ...]) -> Array:
    """uint32 [B, *shape]: a hash of the key's two words, the row's number and the place in the row.

    Not threefry, whose bits cost more than all else of a small layer and seconds of compilation a site on a CPU; dropout
    asks for less than cryptography, and tests/nn/test_dropout.py holds it to rate, independence of neighbours, rows, keys.
    """
    first, second = jax.random.key_data(key.base)[..., 0], jax.random.key_data(key.base)[..., 1]
    row = mix(key.rows.astype(jnp.uint32) * jnp.uint32(GOLDEN) + first).reshape(-1, *[1] * len(shape))
    place = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(1, *shape)
    return mix(mix(place * jnp.uint32(GOLDEN) ^ row) + (second ^ row))


def check_rate(**rates: float) -> None:
    """UserError where a named rate is none: for constructors, so that it is found before a batch is."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise UserError(f"{name} is {rate}; it must be at least 0 and below 1")


def dropout(x: Array, rate: float, key: Key | None) -> Array:
    """[B, ...]: keeps a value with probability 1 - rate and scales it up; key None (evaluation) keeps all."""
    check_rate(rate=rate)
    if key is None or rate == 0:
        return x
    keep = bits(key, x.shape[1:]) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(keep, x / (1 - rate), 0)
