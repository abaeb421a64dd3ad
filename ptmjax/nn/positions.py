"""Rotary positions (Su et al. 2021). Learned tables are embedders; relative biases belong to the context.

B rows, L length, H heads, K head size.
"""
import jax.numpy as jnp

from ptmjax.types import Array, Batch, UserError


def positions(batch: Batch) -> Array:
    """[B or 1, L]: the batch's own positions (packed examples restart), or 0, 1, 2, ..."""
    return batch["positions"] if "positions" in batch else jnp.arange(batch["tokens"].shape[1])[None]


def rotary_angles(where: Array, size: int, base: float = 10000.0) -> Array:
    """[B, L] -> [B, L, K/2]: position * base^(-2i/K), float32."""
    if size % 2:
        raise UserError(f"rotary positions need an even head size, not {size}")
    return where[..., None] * base ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)


def rotate(x: Array, angles: Array) -> Array:
    """[B, L, H, K] turned by [B, L, K/2]; the pairs are (i, i + K/2), GPT-NeoX's layout, not the paper's (2i, 2i + 1):
    the two differ by a fixed permutation of the head's axes, and halves need no strided copies."""
    if 2 * angles.shape[-1] != x.shape[-1]:
        raise UserError(f"rotary positions are for heads of size {2 * angles.shape[-1]} but the heads are of size {x.shape[-1]}: "
                        "set Context.rotary to it")
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
