"""Cuts: documents to records of fixed length. Everything that changes the number of examples happens here, before the cache.

L length. A cut is a frozen dataclass, so that its repr is its configuration; `schema` names the columns of a record and their
dtypes; every column is a vector.
"""
import collections
import dataclasses
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError


def _check(length: int) -> None:
    if length < 1:
        raise UserError(f"a cut of {length} tokens holds nothing: give a length of at least 1")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of `length` tokens, never across documents; a tail shorter than `minimum` is dropped.

    Records hold no special tokens: the corruption adds them. `document` is the CRC-32 of the text, so duplicates share it.
    """

    length: int
    minimum: int = 1
    schema = {"tokens": "int32", "document": "int32"}

    def __post_init__(self):
        _check(self.length)
        if not 1 <= self.minimum <= self.length:
            raise UserError(f"the shortest block, {self.minimum}, must lie in 1..{self.length}")

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length], document int32 [1]; `counts` gets documents, tokens, dropped and dropped_tokens."""
        counts = collections.Counter() if counts is None else counts
        for text in documents:
            tokens = vocabulary.encode(text)
            document = np.array([zlib.crc32(text.encode())], np.uint32).view(np.int32)
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
