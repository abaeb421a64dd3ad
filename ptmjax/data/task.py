"""A task: which text, cut how, corrupted how. SeqIO's registry is the registry (adapters.py)."""
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ptmjax.data import sources
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
    def source(self) -> sources.Source:
        return sources.source(self.text, self.style, self.field)

    def on(self, name: str, vocabulary: Vocabulary, **text) -> "Task":
        """This task with another vocabulary, wherever one stands in its cut, corruption and readout (dataclasses), and another
        text: text, style, field, holdout."""
        parts = {part: swapped(getattr(self, part), vocabulary) for part in ("cut", "corruption", "readout")}
        return dataclasses.replace(self, name=name, vocabulary=vocabulary, **parts, **text)

    def made_up(self) -> list[dict[str, np.ndarray]]:
        """Some records of a text that nobody wrote. A corruption gives them the shapes that it gives all others, so these are known
        without the task's own text; the vocabulary's file is read."""
        found = list(itertools.islice(self.cut(nonsense(), self.vocabulary), 8))
        if not found:
            raise UserError(f"task {self.name}: its cut makes no record of {DOCUMENTS} documents of {LINES} lines each: its shapes are "
                            "known where its own text is read, by `ptmjax train --dry_run`")
        return found


def swapped(part: object, vocabulary: Vocabulary) -> object:
    """A part of a task with every Vocabulary in it replaced; UserError where it holds one and is no dataclass."""
    if isinstance(part, Vocabulary):
        return vocabulary
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **{f.name: swapped(getattr(part, f.name), vocabulary) for f in dataclasses.fields(part) if f.init})
    if any(isinstance(x, Vocabulary) for x in getattr(part, "__dict__", {}).values()):
        raise UserError(f"{part!r} holds a vocabulary and is no dataclass, so another text's cannot be put in: make it one")
    return part
