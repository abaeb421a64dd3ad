"""A task: which text, cut how, corrupted how. SeqIO's registry is the registry (adapters.py)."""
import dataclasses
from collections.abc import Callable

from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError


@dataclasses.dataclass(frozen=True)
class Task:
    """Picklable: worker processes get one."""

    name: str
    text: str | tuple[str, ...]  # paths or globs; plain, .gz or .xz
    vocabulary: Vocabulary
    cut: Callable  # (documents, vocabulary, counts) -> records (windows.py)
    corruption: Callable  # (example, rng, lookup) -> example
    readout: Callable | None = None  # the corruption of evaluation, where it differs
    style: str = "blank"  # what ends a document (text.documents)
    shards: int = 8  # runs of documents, one file each; part of the data, whatever the number of workers
    holdout: int = 50  # one document in so many is validation

    def __post_init__(self):
        if self.shards < 1 or self.holdout < 2:
            raise UserError(f"task {self.name}: {self.shards} shards, 1 in {self.holdout} held out: give at least 1 and 2")
