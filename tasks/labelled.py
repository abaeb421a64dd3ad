"""Labelled texts, for probes of frozen encoders: name -> documents with a class, which the text itself tells.

N blocks, L tokens of a block.
"""
import collections
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ptmjax.tasks.corpora import EN_PD_SMALL, ZH_PD_SMALL

from ptmjax.data import sources, text
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError, at_least, one_of


class Document(NamedTuple):
    text: str
    label: int
    split: str  # "train", "validation" (a fifth of what is trained on) or "test": what pre-training holds out


class Rows(NamedTuple):
    """Blocks of the documents of one split."""

    tokens: np.ndarray  # int32 [N, L], without special tokens
    labels: np.ndarray  # int64 [N]
    documents: np.ndarray  # int64 [N]: blocks of one document share it


@dataclass(frozen=True)
class Labelled:
    """parts: where a class begins, as the first words of its first document, in the order of the text; class None: of no class, as what
    stands before the first. length: tokens of a block. holdout: that of the tasks on this text, so that no document that an encoder was
    trained on is tested."""

    text: str
    parts: tuple[tuple[str, str | None], ...]
    length: int
    holdout: int = 50

    def __post_init__(self):
        at_least(1, length=self.length)
        at_least(2, holdout=self.holdout)

    @property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(name for _, name in self.parts if name is not None))

    def documents(self) -> Iterator[Document]:
        """Those of a class, in order. UserError where the text has no document that begins with the words of a part."""
        left, label = list(self.parts), None
        for document in text.documents(self.text):
            if left and document.startswith(left[0][0]):
                label = left.pop(0)[1]
            if label is not None:
                yield Document(document, self.classes.index(label), self.split(document))
        if left:
            raise UserError(f"text {self.text} has no document that begins with {left[0][0]!r} where one is looked for: mend the parts")

    def split(self, document: str) -> str:
        """By content, so that equal documents share it."""
        if text.split_of(document, self.holdout) == "validation":
            return "test"
        return "train" if zlib.crc32(document.encode()) // self.holdout % 5 else "validation"

    def rows(self, vocabulary: Vocabulary, most: int | None = None) -> dict[str, Rows]:
        """Split -> its blocks, all full; what is left of a document is dropped. most: of a class in "train", a quarter of that
        in "validation", drawn the same way at every call; the test is whole. UserError where a split lacks a class."""
        found: dict[str, list] = {"train": [], "validation": [], "test": []}
        for document in self.documents():
            ids, number = vocabulary.encode(document.text), zlib.crc32(document.text.encode())
            blocks = ids[: len(ids) - len(ids) % self.length].reshape(-1, self.length)
            found[document.split] += [(block, document.label, number) for block in blocks]
        for split, blocks in found.items():
            if lacks := set(range(len(self.classes))) - {label for _, label, _ in blocks}:
                lacking = self.classes[min(lacks)]
                raise UserError(f"the {split} documents of {self.text} give no block of {lacking!r}: give it more documents")
        limits = {"train": most, "validation": None if most is None else -(-most // 4), "test": None}
        return {split: drawn(blocks, limits[split]) for split, blocks in found.items()}


@dataclass(frozen=True)
class Fields(Labelled):
    """Rows of a JSON or parquet file, of which a field is the class: parts are ((class, class), ...), the others are left out."""

    field: str = "label"

    def documents(self) -> Iterator[Document]:
        read = lambda field: sources.source(self.text, "blank", field).documents(collections.Counter())
        for document, name in zip(read("text"), read(self.field), strict=True):
            if name in self.classes:
                yield Document(document, self.classes.index(name), self.split(document))


def drawn(blocks: Sequence[tuple[np.ndarray, int, int]], most: int | None) -> Rows:
    """At most so many of a class, in the order of the text."""
    tokens, labels, documents = (np.array(column) for column in zip(*blocks))
    rng = np.random.default_rng(0)
    kept = [rng.permutation(np.flatnonzero(labels == c))[:most] for c in range(labels.max() + 1)]
    at = np.sort(np.concatenate(kept))
    return Rows(tokens[at].astype(np.int32), labels[at].astype(np.int64), documents[at].astype(np.int64))


LABELLED: dict[str, Labelled] = {}


def register(name: str, labelled: Labelled) -> None:
    """Under a name for `ptmjax probe --labels`; another set under a taken name is a ValueError."""
    if LABELLED.setdefault(name, labelled) != labelled:
        raise ValueError(f"the labelled set {name!r} is taken")


def read(name: str) -> Labelled:
    one_of("--labels", name, LABELLED)
    return LABELLED[name]


# The chapters of the novel (135 documents); those of the Bible by the part in which English editions have their book: the law (Genesis
# to Deuteronomy, 187), history (Joshua to Esther, 249), poetry (Job to the Song of Songs, 238); presidents' addresses to Congress (72).
# Of them 4, 2, 5, 4 and 1 are held out, which gives 1039, 216, 251, 116 and 632 blocks of 16 tokens to test on. No chapter of the
# prophets is held out: they are left out, as is the preface.
PARTS = (
    ("CHAPTER 1. ", "novel"),
    ("The Holy Bible is a collection", None),
    ("In the beginning, God", "law"),
    ("Now after the death of Moses", "history"),
    ("There was a man in the land of Uz", "poetry"),
    ("The vision of Isaiah", None),
    ("hat has been done for us by our soldiers", "address"),  # the text has the first one from its middle on
)
for _length in (16, 32):
    register(f"en_pd_parts_{_length}", Labelled(EN_PD_SMALL, PARTS, _length))
    register(f"zh_pd_genre_{_length}", Fields(ZH_PD_SMALL, (("shi", "shi"), ("ci", "ci"), ("qu", "qu")), _length, field="genre"))
