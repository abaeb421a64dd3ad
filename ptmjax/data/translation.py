"""Texts in two languages, and translation language modelling (Conneau and Lample 2019, arXiv 1901.07291, sections 3.3 and 3.4).

A document is a line of columns with a tab between, one a language (a Task of style "line"), so what is held out is the same of every
column. B rows, L length, m and n tokens of the two sides.
"""
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from ptmjax.data.corruption import Over
from ptmjax.data.masking import Masking
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.data.windows import blocks
from ptmjax.types import UserError


# ------------------------------------------------------------------ cuts
class Cut(Protocol):
    """Of windows.py."""

    schema: dict[str, str]

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]: ...


def cell(line: str, column: int) -> str:
    """What stands in a column of a line, without the space around it; "" where it has less columns."""
    found = line.split("\t")
    return found[column].strip() if column < len(found) else ""


def made_up(columns: int = 2, lines: int = 2000) -> Iterator[str]:
    """Lines that nobody wrote (Task.made_up)."""
    return ("\t".join([f"In the year {line} the ship number {line} went out to see the sea."] * columns) for line in range(lines))


@dataclasses.dataclass(frozen=True)
class Column:
    """A cut of one column: `lines` lines with something in it, one after the other, are a document of `cut`. Lines without are dropped."""

    cut: Cut
    column: int
    lines: int = 16

    def __post_init__(self):
        if self.column < 0 or self.lines < 1:
            raise UserError(f"column {self.column}, {self.lines} lines a document: give one from 0, and at least 1 line")

    @property
    def schema(self) -> dict[str, str]:
        return self.cut.schema

    def nonsense(self) -> Iterator[str]:
        return made_up(self.column + 1)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        kept = (text for line in documents if (text := cell(line, self.column)))
        return self.cut(map("\n".join, iter(lambda: list(itertools.islice(kept, self.lines)), [])), vocabulary, counts)


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of documents, one after the other with SEP between, cut into `length` tokens each: XLM's stream of sentences.

    The last, short block is kept where it has at least `minimum` tokens. A block may begin inside a line.
    """

    length: int
    minimum: int = 1
    schema = {"tokens": "int32"}

    def __post_init__(self):
        if not 1 <= self.minimum <= self.length:
            raise UserError(f"the shortest block, {self.minimum}, must lie in 1..{self.length}")

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length]; `counts` gets documents, tokens, dropped_tokens."""
        counts = collections.Counter() if counts is None else counts
        sep = np.array([_symbol(vocabulary, "sep")], np.int32)

        def read() -> Iterator[np.ndarray]:
            for text in documents:
                lines = [vocabulary.encode(line) for line in text.split("\n")]
                counts.update(documents=1, tokens=sum(map(len, lines)))
                yield np.concatenate([part for line in lines for part in (line, sep)])

        yield from blocks(read(), self.length, self.minimum, counts)


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Both sides of consecutive lines (columns 0 and 1), as many as have `length` tokens together; `middle` says where the second begins.

    SEP is between two lines of a side. A line of more tokens (too_long), or without one of the sides, is dropped. Departure: XLM has
    one pair of sentences a row, and batches of pairs of like length; rows here are of one length, so they are filled.
    """

    length: int
    schema = {"tokens": "int32", "middle": "int32"}

    def __post_init__(self):
        if self.length < 2:
            raise UserError(f"a pair of texts in {self.length} tokens: give room for at least 2")

    def nonsense(self) -> Iterator[str]:
        return made_up()

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length], middle int32 [1]; `counts` gets documents, tokens, dropped, too_long."""
        counts = collections.Counter() if counts is None else counts
        held, sep = ([], []), np.array([_symbol(vocabulary, "sep")], np.int32)
        for line in documents:
            sides = [vocabulary.encode(cell(line, column)) for column in (0, 1)]
            size = sum(map(len, sides))
            both, fits = all(map(len, sides)), size <= self.length
            counts.update(documents=1, tokens=size * (both and fits), dropped=int(not both), too_long=int(not fits))
            if not (both and fits):
                continue
            if held[0] and sum(map(len, (*held[0], *held[1]))) + size + 2 > self.length:
                yield _both(held)
                held = [], []
            for side, tokens in zip(held, sides):
                side += [sep, tokens] if side else [tokens]
        if held[0]:
            yield _both(held)


def _both(sides: tuple[list[np.ndarray], list[np.ndarray]]) -> dict[str, np.ndarray]:
    a, b = map(np.concatenate, sides)
    return {"tokens": np.concatenate([a, b]), "middle": np.array([len(a)], np.int32)}


def _symbol(vocabulary: Vocabulary, name: str) -> int:
    if (found := getattr(vocabulary, name)) is None:
        raise UserError(f"this vocabulary has no {name}, which is put between lines: use one that has")
    return found


# ------------------------------------------------------------------ corruptions
class Bilingual(Over):
    """What the two share: a Masking, whose readout and bound are theirs."""

    masking: Masking

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.masking.features, "positions", "languages")


@dataclasses.dataclass(frozen=True)
class Monolingual(Bilingual):
    """Corruption: Masking's rows, with positions and the number of their language at every token, as XLM's masked language model has."""

    masking: Masking
    language: int = 0

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """[B, L] each."""
        out = self.masking.rows(examples, rngs, lookup)
        place = np.arange(self.masking.length, dtype=np.int32)
        return out | {"positions": place * out["segments"], "languages": self.language * out["segments"]}


@dataclasses.dataclass(frozen=True)
class Tlm(Bilingual):
    """Corruption: CLS a SEP CLS b SEP, a text and its translation (records of Parallel), of both of which tokens are predicted.

    Positions begin again at 0 with the second side, and every token has the number of its language (section 3.3). The share that is
    predicted is of the whole row, chosen by Masking as of one text; a special id never is. XLM writes </s> at both ends of each side:
    so does this with a vocabulary whose cls and sep are one id; with two, as in BERT, the model can tell where a side begins.
    A record that is longer than length - 4 loses the ends of its longer side.
    """

    masking: Masking
    languages: tuple[int, int] = (0, 1)

    def __post_init__(self):
        if self.masking.length < 6:
            raise UserError(f"two sides need rows of at least 6 tokens (CLS, one, SEP, CLS, one, SEP), not {self.masking.length}")

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """[B, L] each."""
        sides = [self._sides(example) for example in examples]
        begin = lambda b: np.concatenate([np.full((1, *b.shape[1:]), self.masking.vocabulary.cls, b.dtype), b])
        out = self.masking.masked([(a, begin(b)) for a, b in sides], rngs, lookup)
        first, place = np.array([[len(a) + 2] for a, _ in sides]), np.arange(self.masking.length)
        second = place >= first
        one, other = self.languages
        types = {"types": (second * out["segments"]).astype(np.int32)} if self.masking.types else {}
        return out | types | {
            "positions": ((place - first * second) * out["segments"]).astype(np.int32),
            "languages": (np.where(second, other, one) * out["segments"]).astype(np.int32),
        }

    def _sides(self, example: dict) -> tuple[np.ndarray, np.ndarray]:
        if "middle" not in example:
            raise UserError("translation language modelling needs the two sides of its records: cut the text with translation.Parallel")
        tokens, middle, most = self.masking.pieces(example), int(example["middle"][0]), self.masking.length - 4
        over = max(0, len(tokens) - most)
        sizes = [middle, len(tokens) - middle]
        even = min(over, abs(sizes[0] - sizes[1]))
        sizes[sizes[1] > sizes[0]] -= even
        return tokens[:middle][: sizes[0] - (over - even) // 2], tokens[middle:][: sizes[1] - (over - even + 1) // 2]
