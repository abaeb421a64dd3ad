"""The mask axis: what every layer of a stack sees of a batch.

B rows, L length, H heads, K head size.
"""
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx

from ptmjax.nn import masks
from ptmjax.nn.masks import See
from ptmjax.nn.positions import positions, rotary_angles
from ptmjax.types import Array, Batch, constrain


class Context(nnx.Module):
    """batch -> {see, angles [., L, K/2] where rotary, bias [B, H, L, L] where a bias, and of a decoder encoded, encoded_see}.

    What is seen is a masks.See, or a plain bool [B, L, L]; cross is what a decoder sees of the encoder's side. rotary is the head
    size K, None for no rotary positions; bias is a factory of a layer batch -> scores to add (relative positions), made once and
    shared by all layers.
    """

    def __init__(self, see: Callable[[Batch], See | Array] = masks.full, *, cross: Callable[[Batch], See | Array] = masks.cross,
                 rotary: int | None = None, bias: Callable | None = None, key: Array):
        self.see, self.cross, self.rotary = see, cross, rotary
        self.bias = None if bias is None else bias(key=key)

    def __call__(self, batch: Batch) -> dict[str, See | Array]:
        out = {"see": self.see(batch)}
        if self.rotary is not None:
            out["angles"] = rotary_angles(positions(batch), self.rotary)
        if self.bias is not None:
            bias = self.bias(batch)  # for every row: its gradient is then summed over them once, not in each layer
            out["bias"] = constrain(jnp.broadcast_to(bias, (len(batch["segments"]), *bias.shape[1:])), "batch", "heads", None, None)
        if "encoded" in batch:
            out |= {"encoded": batch["encoded"], "encoded_see": self.cross(batch)}
        return out
