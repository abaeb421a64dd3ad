"""Paired differences between runs, and how sure they are: percentile bootstrap intervals of 95 %.

S seeds, G groups of held-out rows (documents), R rows.
"""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 10_000
LIMITS = (2.5, 97.5)  # per cent
ROOM = 10_000_000  # numbers that are drawn at once


class Sums(NamedTuple):
    """A number as a ratio of sums over rows, those of a document added up."""

    document: np.ndarray  # [G], sorted
    value: np.ndarray  # [G]
    weight: np.ndarray  # [G]

    @classmethod
    def of(cls, document: np.ndarray, value: np.ndarray, weight: np.ndarray) -> "Sums":
        """From rows [R]."""
        found, group = np.unique(document, return_inverse=True)
        return cls(found, np.bincount(group, value, len(found)), np.bincount(group, weight, len(found)))

    @property
    def number(self) -> float:
        return float(self.value.sum() / self.weight.sum())


def over_seeds(differences: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean of the S differences, seeds drawn again with replacement; None for one seed."""
    x = np.asarray(differences, np.float64)
    if len(x) < 2:
        return None
    drawn = np.random.default_rng(0).integers(len(x), size=(DRAWS, len(x)))
    return interval(x[drawn].mean(1))


def over_documents(ours: Sequence[Sums], theirs: Sequence[Sums]) -> tuple[float, float] | None:
    """Of the mean over S seeds of the difference ours - theirs, documents drawn again with replacement, the same ones for all runs; None
    for one document, or where the runs were not read out on the same."""
    documents = ours[0].document
    if len(documents) < 2 or not all(np.array_equal(s.document, documents) for s in (*ours, *theirs)):
        return None
    rng, groups, found = np.random.default_rng(0), len(documents), []
    for begin in range(0, DRAWS, step := max(1, ROOM // groups)):
        drawn = rng.multinomial(groups, np.full(groups, 1 / groups), min(step, DRAWS - begin))
        found.append(np.mean([ratio(drawn, a) - ratio(drawn, b) for a, b in zip(ours, theirs)], axis=0))
    return interval(np.concatenate(found))


def ratio(drawn: np.ndarray, sums: Sums) -> np.ndarray:
    """The number in every draw; NaN where nothing of it is drawn."""
    value, weight = drawn @ sums.value, drawn @ sums.weight
    return np.divide(value, weight, out=np.full(len(drawn), np.nan), where=weight > 0)


def interval(found: np.ndarray) -> tuple[float, float]:
    low, high = np.nanpercentile(found, LIMITS)
    return float(low), float(high)


class Compared(NamedTuple):
    """A number of one variant, over seeds."""

    values: dict[int, float | None]  # seed -> number; None is missing
    mean: float | None
    deviation: float | None  # of a sample: over S - 1
    difference: float | None  # to the first variant, mean over the seeds that both have
    seeds: tuple[float, float] | None
    documents: tuple[float, float] | None


def compared(values: dict[int, float | None], first: dict[int, float | None], rows: dict[int, Sums], first_rows: dict[int, Sums],
             is_first: bool = False) -> Compared:
    """rows, first_rows: seed -> the Sums of the number, where there are any. The first variant itself has no difference."""
    there = [x for x in values.values() if x is not None]
    both = [seed for seed, x in values.items() if x is not None and first.get(seed) is not None and not is_first]
    differences = [values[seed] - first[seed] for seed in both]
    ready = both and all(seed in rows and seed in first_rows for seed in both)
    documents = over_documents([rows[seed] for seed in both], [first_rows[seed] for seed in both]) if ready else None
    return Compared(values, float(np.mean(there)) if there else None, float(np.std(there, ddof=1)) if len(there) > 1 else None,
                    float(np.mean(differences)) if both else None, over_seeds(differences), documents)
