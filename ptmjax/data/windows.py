"""Cuts: documents to records of fixed length. Everything that changes the number of examples happens here, before the cache.

L length. A cut is a frozen dataclass, so that its repr is its configuration; `schema` names the columns of a record and their
dtypes; every column is a vector.
"""
import collections
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from ptmjax.data.text import sentences
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError


def _check(length: int, minimum: int = 1) -> None:
    if length < 1:
        raise UserError(f"a cut of {length} tokens holds nothing: give a length of at least 1")
    if not 1 <= minimum <= length:
        raise UserError(f"the shortest block, {minimum}, must lie in 1..{length}")


def number_of(text: str) -> np.ndarray:
    """The CRC-32 of a document, int32 [1]: duplicates share it."""
    return np.array([zlib.crc32(text.encode())], np.uint32).view(np.int32)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of `length` tokens, never across documents; a tail shorter than `minimum` is dropped.

    Records hold no special tokens: the corruption adds them. `document` is the CRC-32 of the text, so duplicates share it.
    """

    length: int
    minimum: int = 1
    schema = {"tokens": "int32", "document": "int32"}

    def __post_init__(self):
        _check(self.length, self.minimum)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length], document int32 [1]; `counts` gets documents, tokens, dropped and dropped_tokens."""
        counts = collections.Counter() if counts is None else counts
        for text in documents:
            tokens, document = vocabulary.encode(text), number_of(text)
            kept = len(tokens) - (len(tokens) % self.length if len(tokens) % self.length < self.minimum else 0)
            counts.update(documents=1, tokens=kept, dropped=int(kept == 0), dropped_tokens=len(tokens) - kept)
            for begin in range(0, kept, self.length):
                yield {"tokens": tokens[begin : begin + self.length], "document": document}


@dataclasses.dataclass(frozen=True)
class Stream:
    """Blocks of length + 1 tokens of one stream, SEP after each document, each block beginning with the last token of the one before.

    For language models with carry: inputs are tokens[:-1], targets tokens[1:]. The stream's last, short block is dropped.
    """

    length: int
    schema = {"tokens": "int32"}

    def __post_init__(self):
        _check(self.length)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [length + 1]; `counts` as in Blocks (dropped stays 0: no document is left out whole)."""
        if vocabulary.sep is None:
            raise UserError("this vocabulary has no [SEP], which a stream puts between documents: use one that has")
        counts = collections.Counter() if counts is None else counts
        held = np.zeros(0, np.int32)
        for text in documents:
            tokens = np.append(vocabulary.encode(text), np.int32(vocabulary.sep))
            held = np.concatenate([held, tokens])
            counts.update(documents=1, tokens=len(tokens))
            blocks = max(0, (len(held) - 1) // self.length)
            for begin in range(0, blocks * self.length, self.length):
                yield {"tokens": held[begin : begin + self.length + 1]}
            held = held[blocks * self.length :]
        counts["dropped_tokens"] += max(0, len(held) - 1)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Blocks of consecutive whole sentences of one document, up to `length` tokens; a block shorter than `minimum` is dropped.

    A sentence (text.sentences) of more than `length` tokens is cut into sentences of that many. Each is encoded by itself, as in
    BERT, whose input has one a line. `starts` says where the sentences of a block begin, `document` is as in Blocks. With a corruption
    that takes a block whole, such as Masking, these are RoBERTa's DOC-SENTENCES (FullSentences).
    """

    length: int
    minimum: int = 1
    schema = {"tokens": "int32", "starts": "int32", "document": "int32"}

    def __post_init__(self):
        _check(self.length, self.minimum)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length], starts int32 [sentences], document int32 [1]; `counts` as in Blocks, and gets
        lone_sentences: the documents of one sentence, for which no next one can follow."""
        counts = collections.Counter() if counts is None else counts
        for text in documents:
            kept, document, total = 0, number_of(text), 0
            for block in self._blocks(text, vocabulary):
                tokens, total = np.concatenate(block), total + len(block)
                if len(tokens) >= self.minimum:
                    kept += len(tokens)
                    yield {"tokens": tokens, "starts": np.cumsum([0, *map(len, block[:-1])], dtype=np.int32), "document": document}
                else:
                    counts["dropped_tokens"] += len(tokens)
            counts.update(documents=1, tokens=kept, dropped=int(kept == 0), lone_sentences=int(total == 1))

    def _blocks(self, text: str, vocabulary: Vocabulary) -> Iterator[list[np.ndarray]]:
        """As many sentences a time as fit, tokens of each."""
        held, room = [], self.length
        for sentence in _encoded(text, vocabulary):
            for part in _parts(sentence, self.length):
                if len(part) > room:
                    yield held
                    held, room = [], self.length
                held.append(part)
                room -= len(part)
        if held:
            yield held


def _encoded(text: str, vocabulary: Vocabulary) -> Iterator[np.ndarray]:
    """The tokens of each sentence, with the space before it where that is part of them."""
    return map(vocabulary.encode, sentences(text, vocabulary.spaces))


def _parts(sentence: np.ndarray, length: int) -> Iterator[np.ndarray]:
    """A sentence in parts of `length` tokens, and a last that may be shorter."""
    return (sentence[begin : begin + length] for begin in range(0, len(sentence), length))


@dataclasses.dataclass(frozen=True)
class FullSentences:
    """Blocks of consecutive whole sentences, up to `length` tokens, that go on from a document into the next with a SEP between them:
    RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2), in which its models were trained.

    A block begins with a sentence, and ends before the first that does not fit; one of more than `length` tokens is cut as in Sentences.
    Blocks shorter than `minimum` are dropped: the last, or one that a long sentence follows. The corruption adds CLS and the last SEP.
    `starts` says where the sentences of a block begin; a SEP ends the one before it. Departures: fairseq, for which a line is a sentence,
    puts </s> behind each of its lines, and a blank line's between documents besides; here there is the latter alone, as in the paper.
    """

    length: int
    minimum: int = 1
    schema = {"tokens": "int32", "starts": "int32"}

    def __post_init__(self):
        _check(self.length, self.minimum)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length], starts int32 [sentences]; `counts` as in Stream, the SEPs that stand in a block among its
        tokens."""
        if vocabulary.sep is None:
            raise UserError("this vocabulary has no SEP, which stands between documents: use one that has")
        counts, sep = collections.Counter() if counts is None else counts, np.asarray(vocabulary.sep, np.int32)[None]
        held, starts, size = [], [], 0
        for text in documents:
            counts["documents"] += 1
            between = [sep]
            for sentence in _encoded(text, vocabulary):
                for part in _parts(sentence, self.length):
                    before = between if held else []
                    if size + len(before) + len(part) > self.length:
                        yield from self._block(held, starts, counts)
                        held, starts, size, before = [], [], 0, []
                    starts.append(size + len(before))
                    held += [*before, part]
                    size += len(before) + len(part)
                    between = []
        yield from self._block(held, starts, counts)

    def _block(self, held: list[np.ndarray], starts: list[int], counts: collections.Counter) -> Iterator[dict]:
        """The record of what is held, or none where that is too short."""
        size = sum(map(len, held))
        counts["tokens" if size >= self.minimum else "dropped_tokens"] += size
        if size >= self.minimum:
            yield {"tokens": np.concatenate(held), "starts": np.array(starts, np.int32)}


@dataclasses.dataclass(frozen=True)
class Joined:
    """The tokens of consecutive documents, joined with nothing between and cut into `length` tokens each, as T5's input is.

    For span corruption, whose inputs are full rows: length is spans.Spans.raw. The last, short block is kept where it has at
    least `minimum` tokens. Departure: T5 takes one random run of at most 65536 tokens from each document; here all of it.
    """

    length: int
    minimum: int = 1
    schema = {"tokens": "int32"}

    def __post_init__(self):
        _check(self.length, self.minimum)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length]; `counts` as in Stream."""
        counts = collections.Counter() if counts is None else counts

        def read() -> Iterator[np.ndarray]:
            for text in documents:
                tokens = vocabulary.encode(text)
                counts.update(documents=1, tokens=len(tokens))
                yield tokens

        yield from blocks(read(), self.length, self.minimum, counts)


def blocks(texts: Iterable[np.ndarray], length: int, minimum: int, counts: collections.Counter) -> Iterator[dict]:
    """Records of `length` tokens of the texts, one behind the other; the last, shorter one where it has `minimum`, or else it is counted
    as dropped."""
    held = np.zeros(0, np.int32)
    for tokens in texts:
        held = np.concatenate([held, tokens])
        whole = len(held) - len(held) % length
        for begin in range(0, whole, length):
            yield {"tokens": held[begin : begin + length]}
        held = held[whole:]
    if len(held) >= minimum:
        yield {"tokens": held}
    else:
        counts.update(tokens=-len(held), dropped_tokens=len(held))


class Written(Protocol):
    """How documents are written that are no plain text (segmenters.Spaced, tagged.Tagged)."""

    columns: tuple[str, ...]

    def read(self, document: str, counts: collections.Counter) -> tuple[str, Mapping[str, Sequence[int]]]:
        """The plain text, and column -> the characters of it at which units begin."""


@dataclasses.dataclass(frozen=True)
class Segmented:
    """Blocks, Sentences or FullSentences (or dialogue.Turns) whose records also say where words begin, where spaces do not tell: what
    Masking(choice=Words()) chooses then are the segmenter's words (BERT-wwm, Cui et al. 2019, arXiv 1906.08101).

    words: gives the words of a text in order, as jieba.lcut does (segmenters.py has some); a frozen dataclass with __call__, since it goes
        to worker processes and its repr, part of the cache's key, is to name all that decides them. The ids do not depend on it. A
        character that none of its words covers is a word; a piece that reaches from one word into the next joins them. Both, and words
        that the text does not have, are counted. Or several columns, each marked by a segmenter of its own: {"words": ..., "phrases":
        ..., "entities": ...}, as ERNIE needs them (Sun et al. 2019, arXiv 1904.09223).
    written: how the documents are written, where their words (and maybe more) are marked in them already; what it marks has no
        segmenter. The vocabulary sees the plain text.
    """

    cut: Blocks | Sentences | FullSentences | Callable
    words: Callable[[str], Iterable[str]] | Mapping[str, Callable[[str], Iterable[str]]] | None = None
    written: Written | None = None

    def __post_init__(self):
        if not {"document", "starts"} & self.cut.schema.keys() or isinstance(self.cut, Segmented):
            raise UserError(f"words are marked in Blocks or Sentences, not in {self.cut!r}")
        if " at 0x" in repr((self.words, self.written)):
            raise UserError(f"the segmenter {self.words or self.written!r} has another repr in every process, by which no cache is found "
                            "again: make it a frozen dataclass with __call__")
        if not (found := self.columns) or len(set(found)) < len(found) or set(found) & self.cut.schema.keys():
            raise UserError(f"columns {', '.join(found) or '(none)'} are to be marked: give one or more, each one marker, and none of the "
                            f"names {', '.join(self.cut.schema)}")

    @property
    def segmenters(self) -> dict[str, Callable[[str], Iterable[str]]]:
        return dict(self.words) if isinstance(self.words, Mapping) else {"words": self.words} if self.words else {}

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(self.written.columns if self.written else ()), *self.segmenters)

    @property
    def schema(self) -> dict[str, str]:
        return self.cut.schema | {name: "uint8" for name in self.columns}

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields what the cut does, and each column uint8 [tokens]: 1 where a unit begins. `counts` gets of each column that a segmenter
        marks how many units it gave (words), and of how many no begin is found (unmatched_words)."""
        counts = collections.Counter() if counts is None else counts
        marked = _Marked(vocabulary, self.written, self.segmenters, counts)
        for record in self.cut(map(marked.read, documents), marked, counts):
            tokens, *marks = record["tokens"].T
            yield record | {"tokens": tokens.copy()} | {name: x.astype(np.uint8) for name, x in zip(self.columns, marks, strict=True)}


class _Marked:
    """For a cut, a vocabulary whose pieces are [n, 1 + columns]: the id, and whether a unit of the column begins there.

    The cut takes a document (read) when it has encoded all of the one before, and encodes parts of it in its order.
    """

    def __init__(self, vocabulary: Vocabulary, written: Written | None, segmenters: Mapping[str, Callable], counts: collections.Counter):
        self.vocabulary, self.written, self.segmenters, self.counts = vocabulary, written, segmenters, counts

    def read(self, document: str) -> str:
        """The plain text."""
        self.text, told = self.written.read(document, self.counts) if self.written else (document, {})
        self.told, self.at = [np.isin(np.arange(len(self.text) + 1), starts) for starts in told.values()], 0
        return self.text

    @property
    def spaces(self) -> bool:
        return self.vocabulary.spaces

    @property
    def sep(self) -> tuple[int, ...] | None:
        return None if self.vocabulary.sep is None else (self.vocabulary.sep, *[1] * (len(self.told) + len(self.segmenters)))

    def encode(self, text: str) -> np.ndarray:
        places, begin = self.vocabulary.places(text), self.text.index(text, self.at)
        self.at = begin + len(text)
        firsts = [first[begin : self.at + 1].copy() for first in self.told]
        firsts += [self._first(name, text, segmenter(text), places) for name, segmenter in self.segmenters.items()]
        for first in firsts:
            first[0] = True
        amid = np.append(False, places[1:] == places[:-1])[: len(places)]  # of a character of several pieces, all but the first
        return np.stack([self.vocabulary.encode(text), *(first[places] & ~amid for first in firsts)], axis=1)

    def _first(self, name: str, text: str, units: Iterable[str], places: np.ndarray) -> np.ndarray:
        """bool [characters + 1]: the character begins a unit, or is in none."""
        first, at, begins, missed = np.ones(len(text) + 1, bool), 0, [], 0
        for unit in filter(None, units):
            if (found := text.find(unit, at)) < 0:
                missed += 1
                continue
            at = found + len(unit)
            first[found + 1 : at] = False
            if not unit.isspace():
                begins.append(found)
        self.counts[name] += missed + len(begins)
        self.counts[f"unmatched_{name}"] += missed + int((~np.isin(begins, places)).sum())
        return first
