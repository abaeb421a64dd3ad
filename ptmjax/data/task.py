"""A task: which text, cut how, corrupted how; and a mixture of tasks. By name they stand in registry.py.

Both give `name`, `vocabulary`, the `tasks` that they are made of, and the `shares` of these in what is trained on.
"""
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ptmjax.data import sources
from ptmjax.data.order import smoothed
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError

DOCUMENTS, LINES = 64, 400  # of a text that nobody wrote


def nonsense() -> Iterator[str]:
    """Documents of sentences, no two of which are equal."""
    sentences = lambda number: (f"In the year {line} number {number} went out to see the sea." for line in range(LINES))
    return (" ".join(sentences(number)) for number in range(DOCUMENTS))


@dataclasses.dataclass(frozen=True)
class Task:
    """Picklable: worker processes get one."""

    name: str
    text: str | tuple[str, ...]  # paths or globs, or one SCHEME:NAME (sources.source)
    vocabulary: Vocabulary
    cut: Callable  # (documents, vocabulary, counts) -> records (windows.py)
    corruption: Callable  # (example, rng, lookup) -> example
    readout: Callable | None = None  # the corruption of evaluation, where it differs
    style: str = "blank"  # what ends a document (text.documents)
    shards: int = 8  # runs of documents, one file each; part of the data, whatever the number of workers
    holdout: int = 50  # one document in so many is validation
    field: str = "text"  # of the rows of JSON and parquet files and of datasets: what is a document

    def __post_init__(self):
        if self.shards < 1 or self.holdout < 2:
            raise UserError(f"task {self.name}: {self.shards} shards, 1 in {self.holdout} held out: give at least 1 and 2")

    @property
    def tasks(self) -> tuple["Task", ...]:
        return (self,)

    exponents = False

    def shares(self, sizes: Sequence[int]) -> tuple[float, ...]:
        return (1.0,)

    @property
    def source(self) -> sources.Source:
        return sources.source(self.text, self.style, self.field)

    def at(self, path: str) -> "Task":
        """With its vocabulary read from a copy of its file."""
        return dataclasses.replace(self, vocabulary=self.vocabulary.at(path))

    def on(self, name: str, vocabulary: Vocabulary, **text) -> "Task":
        """This task with another vocabulary, wherever one stands in its cut, corruption and readout (dataclasses), and another
        text: text, style, field, holdout."""
        parts = {part: swapped(getattr(self, part), vocabulary) for part in ("cut", "corruption", "readout")}
        return dataclasses.replace(self, name=name, vocabulary=vocabulary, **parts, **text)

    def made_up(self) -> list[dict[str, np.ndarray]]:
        """Some records of a text that nobody wrote. A corruption gives them the shapes that it gives all others, so these are known
        without the task's own text; the vocabulary's file is read. A cut of another kind of text has a `nonsense` of its own."""
        found = list(itertools.islice(self.cut(getattr(self.cut, "nonsense", nonsense)(), self.vocabulary), 8))
        if not found:
            raise UserError(f"task {self.name}: its cut makes no record of {DOCUMENTS} documents of {LINES} lines each: its shapes are "
                            "known where its own text is read, by `ptmjax train --dry_run`")
        return found


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Tasks, or mixtures of tasks, read side by side at fixed rates (order.Mixed): each is cut, cached and corrupted as by itself.

    Give either `rates`, one a part, of which only the proportions count, or an `exponent` of the parts' sizes in training records
    (order.smoothed); of records of one length that is as good as their tokens. The rates of a part that is a mixture are within it.
    """

    name: str
    parts: tuple["Task | Mixture", ...]
    rates: tuple[float, ...] | None = None
    exponent: float | None = None

    def __post_init__(self):
        names = [task.name for task in self.tasks]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"mixture {self.name}: task {twice!r} stands in it twice: give it one rate")
        if not names:
            raise UserError(f"mixture {self.name} has no tasks: give some")
        if (self.rates is None) == (self.exponent is None):
            raise UserError(f"mixture {self.name}: give either rates, or an exponent of the sizes")
        if self.exponent is not None and not 0 <= self.exponent <= 1:
            raise UserError(f"mixture {self.name}: an exponent of {self.exponent} is not in [0, 1]: 1 keeps the sizes, 0 makes all equal")
        if self.rates is not None and (len(self.rates) != len(self.parts) or not all(0 < rate < math.inf for rate in self.rates)):
            raise UserError(f"mixture {self.name}: rates {list(self.rates)} for {len(self.parts)} tasks: give each one above 0, and leave "
                            "out a task of rate 0")
        first = self.tasks[0]
        for task in self.tasks:
            if set(task.corruption.features) != set(first.corruption.features):
                raise UserError(f"mixture {self.name}: {first.name!r} gives {', '.join(first.corruption.features)}, {task.name!r} "
                                f"{', '.join(task.corruption.features)}: mix tasks whose corruptions give the same keys")

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those of its parts, in order."""
        return tuple(task for part in self.parts for task in part.tasks)

    @property
    def exponents(self) -> bool:
        """Whether the shares follow from sizes."""
        return self.exponent is not None or any(part.exponents for part in self.parts)

    def shares(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """Of each task, of the rows that are trained on; sizes: of each in training records."""
        ends = list(itertools.accumulate(len(part.tasks) for part in self.parts))
        within = [sizes[end - len(part.tasks) : end] for part, end in zip(self.parts, ends)]
        rates = self.rates or smoothed([sum(part) for part in within], self.exponent)
        return tuple(rate / sum(rates) * share for rate, part, own in zip(rates, self.parts, within) for share in part.shares(own))

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The one of all its tasks."""
        first = self.tasks[0]
        for task in self.tasks:
            if task.vocabulary is not first.vocabulary and task.vocabulary.fingerprint != first.vocabulary.fingerprint:
                raise UserError(f"mixture {self.name}: the vocabulary of {task.name!r} is not that of {first.name!r}: an id would mean "
                                "another piece, mix tasks of one vocabulary")
        return first.vocabulary

    def at(self, path: str) -> "Mixture":
        return dataclasses.replace(self, parts=tuple(part.at(path) for part in self.parts))

    def on(self, name: str, vocabulary: Vocabulary, **text) -> Task:
        raise UserError(f"{self.name!r} is a mixture of {', '.join(task.name for task in self.tasks)}, each of a text of its own: a text "
                        "of yours takes the place of one, name it as Stage.task")


def swapped(part: object, vocabulary: Vocabulary) -> object:
    """A part of a task with every Vocabulary in it replaced; UserError where it holds one and is no dataclass."""
    if isinstance(part, Vocabulary):
        return vocabulary
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **{f.name: swapped(getattr(part, f.name), vocabulary) for f in dataclasses.fields(part) if f.init})
    if any(isinstance(x, Vocabulary) for x in getattr(part, "__dict__", {}).values()):
        raise UserError(f"{part!r} holds a vocabulary and is no dataclass, so another text's cannot be put in: make it one")
    return part
