"""What an objective promises, and several terms over one encoding.

B rows, L length, K slots.
"""
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ptmjax.types import Array, Batch, Keys, PyTree, Sum, UserError, fold

Nets = Mapping[str, Any]  # name -> network, of which an objective uses encode, decode, head and nll
Losses = tuple[dict[str, Sum], PyTree, dict[str, Sum]]  # losses, carry, metrics


class Objective:
    """Losses as sums with promised denominators.

    coefficients: factor of each loss, 1 where absent. coupled: the sums do not add over rows (in-batch negatives, batch
    statistics), or a denominator is known only after the forward pass; the step then refuses micro-batches.
    """

    coefficients: Mapping[str, float] = {}
    coupled: bool = False

    def weights(self, batch: Batch) -> dict[str, Array]:
        """{loss: denominator}, from the batch alone, over all its rows."""
        raise NotImplementedError

    def losses(self, nets: Nets, batch: Batch, keys: Keys, step: Array, carry: PyTree) -> Losses:
        """({loss: Sum}, the carry of the next segment, {metric: Sum}) of the rows at hand."""
        raise NotImplementedError

    def init_carry(self, nets: Nets, rows: int) -> PyTree:
        """Zeros [rows, ...] that the losses hand from batch to batch; none by default."""
        return {}

    def total(self, means: Mapping[str, Array]) -> Array:
        """The loss that is differentiated: sum of coefficient * mean."""
        return sum(self.coefficients.get(name, 1.0) * mean for name, mean in means.items())


class Term(Protocol):
    """One loss over an encoding: MLM, NSP, SOP, SBO, ..."""

    def weights(self, batch: Batch) -> dict[str, Array]: ...

    def losses(self, net: Any, out: Any, batch: Batch, keys: Keys) -> tuple[dict[str, Sum], dict[str, Sum]]: ...


class Encoding(Objective):
    """Several terms over one encoding of one network, so that the stack runs once (two objectives would run it twice)."""

    def __init__(self, terms: Sequence[Term], net: str = "model", coefficients: Mapping[str, float] = {}):
        self.terms, self.net, self.coefficients = tuple(terms), net, dict(coefficients)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {name: w for term in self.terms for name, w in term.weights(batch).items()}

    def losses(self, nets: Nets, batch: Batch, keys: Keys, step: Array, carry: PyTree) -> Losses:
        net, sums, metrics = nets[self.net], {}, {}
        out = net.encode(batch, fold(keys.dropout, self.net))
        for term in self.terms:
            found, more = term.losses(net, out, batch, keys)
            if taken := (found | more).keys() & (sums | metrics).keys():
                raise UserError(f"two terms of one encoding report {min(taken)!r}: give each its own name")
            sums |= found
            metrics |= more
        return sums, carry, metrics


def weighted(x: Array, weight: Array) -> Sum:
    """The Sum of x with weights of the same shape."""
    return Sum((x * weight).sum(), weight.sum())
