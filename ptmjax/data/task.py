"""A task: which text, cut how, corrupted how. SeqIO's registry is the registry (adapters.py)."""
import dataclasses
from collections.abc import Callable

from ptmjax.data.vocabulary import Vocabulary


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
