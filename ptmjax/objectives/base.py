"""What an objective promises, and several terms over one encoding.

B rows, L length, K slots.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ptmjax.types import Array, Batch, Keys, PyTree, Sum, UserError, at_least, fold

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
        at_least(1, terms=len(terms))
        self.terms, self.net, self.coefficients = tuple(terms), net, dict(coefficients)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return joined(term.weights(batch) for term in self.terms)

    def losses(self, nets: Nets, batch: Batch, keys: Keys, step: Array, carry: PyTree) -> Losses:
        net = network(nets, self.net)
        out = net.encode(batch, fold(keys.dropout, self.net))
        found = [term.losses(net, out, batch, keys) for term in self.terms]
        joined(sums | metrics for sums, metrics in found)  # nor may one term's loss be called as another's metric
        sums, metrics = map(joined, zip(*found))
        return sums, carry, metrics


def network(nets: Nets, name: str) -> Any:
    """The network of that name; UserError where the experiment has none."""
    if name not in nets:
        raise UserError(f"the objective asks for network {name!r}, Experiment.networks has {', '.join(map(repr, sorted(nets)))}: name one")
    return nets[name]


def joined(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the terms of an encoding report, as one; UserError where two report the same name."""
    out: dict[str, Any] = {}
    for part in parts:
        if taken := part.keys() & out.keys():
            raise UserError(f"two terms of one encoding report {min(taken)!r}: give each its own name")
        out |= part
    return out


def check_scores(head: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """UserError where the scores of a head are not of the shape [B, C] or [B, L, C] that its loss reads."""
    if found != wanted:
        place = "the first position alone" if len(wanted) == 2 else "every position"
        raise UserError(f"head {head!r} gives scores of shape {found}, its loss reads {wanted}: give head and loss the same number "
                        f"of classes (Classifier.classes), and let the head score {place} (Classifier.first)")


def weighted(x: Array, weight: Array) -> Sum:
    """The Sum of x with weights of the same shape."""
    return Sum((x * weight).sum(), weight.sum())


def field(batch: Batch, name: str, term: str) -> Array:
    """batch[name]; UserError where the task's corruption does not give it."""
    if name not in batch:
        raise UserError(f"the loss {term!r} reads {name!r} of a batch, which has {', '.join(sorted(batch))}: name a task whose corruption "
                        "gives it")
    return batch[name]
