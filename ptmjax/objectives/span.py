"""Losses on spans.

B rows, L length, K slots, D width.
"""
from typing import Any

import jax.numpy as jnp

from ptmjax.objectives.base import field, weighted
from ptmjax.types import Array, Batch, Keys, Slots, Sum, at_least, slots


class Sbo:
    """Span boundary objective (SpanBERT, Joshi et al. 2020, section 3.2): every token of a span is predicted from the two places
    around it (keys left and right: Masking(bounds=True)) and its place in the span, over its own number of tokens, in K slots a row.

    Of a span longer than `most` the tokens beyond are left out, as in SpanBERT's code; there the sum is divided by their number + 1.
    """

    def __init__(self, slots: int, most: int = 20, head: str = "sbo", name: str = "sbo"):
        at_least(1, slots=slots, most=most)
        self.slots, self.most, self.head, self.name = slots, most, head, name

    def pick(self, batch: Batch) -> Slots:
        w, left = field(batch, "weights", self.name), field(batch, "left", self.name)
        return slots(w * (jnp.arange(w.shape[1]) - left <= self.most), self.slots)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {self.name: self.pick(batch).weight.sum()}

    def losses(self, net: Any, out: Any, batch: Batch, keys: Keys) -> tuple[dict[str, Sum], dict[str, Sum]]:
        at = self.pick(batch)
        left, right = at.take(batch["left"]), at.take(field(batch, "right", self.name))
        there = lambda place: jnp.take_along_axis(out.state, place[..., None], 1)
        number = jnp.maximum(at.where - left - 1, 0)
        loss, hit, _ = net.nll(self.head, (there(left), there(right), number), at.take(batch["targets"]))
        return {self.name: weighted(loss, at.weight)}, {f"{self.name}_accuracy": weighted(hit, at.weight)}
