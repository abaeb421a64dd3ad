"""Who sees whom: functions batch -> [B, L, L] bool (query i, key j), joined by `&` and `|`.

Segments keep packed examples apart and hide padding: a padded position sees nothing and is seen by nobody.
B rows, L length, S length of the encoder's side.
"""
import jax.numpy as jnp

from ptmjax.types import Array, Batch


def full(batch: Batch) -> Array:
    """All positions of the same example."""
    s = batch["segments"]
    return (s[:, :, None] == s[:, None, :]) & (s > 0)[:, None, :]


def causal(batch: Batch) -> Array:
    """Positions of the same example up to one's own."""
    at = jnp.arange(batch["segments"].shape[1])
    return full(batch) & (at[:, None] >= at[None, :])


def own(batch: Batch) -> Array:
    """One's own position only: the control run that cannot learn from context."""
    return full(batch) & jnp.eye(batch["segments"].shape[1], dtype=bool)


def given(batch: Batch) -> Array:
    """The batch's own `visible` (permutation, prefix and other patterns made by a corruption)."""
    return batch["visible"]


def cross(batch: Batch) -> Array:
    """[B, L, S]: a decoder position sees the encoder positions of its own example."""
    s, e = batch["segments"], batch["encoded_segments"]
    return (s[:, :, None] == e[:, None, :]) & (e > 0)[:, None, :]


def nothing(batch: Batch) -> Array:
    """[B, L, S]: a decoder that sees nothing of the encoder: the control run that knows the targets' own law alone."""
    return jnp.zeros((*batch["segments"].shape, batch["encoded_segments"].shape[1]), bool)
