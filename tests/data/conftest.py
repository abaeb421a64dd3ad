"""Vocabularies for the data tests: the shipped one, and a toy with awkward ids."""
from pathlib import Path

import numpy as np
import pytest

from ptmjax.data.vocabulary import SentencePiece, Vocabulary

MODEL = Path(__file__).parents[2] / "tasks" / "shipped" / "en_pd_4096.model"


class Words(Vocabulary):
    """Whole words by table; pad is not 0 and the special ids lie apart."""

    def __init__(self, words: list[str]):
        self.words = ["[SEP]", "[UNK]", *words, "[MASK]", "[PAD]", "[CLS]"]
        self.size = len(self.words)
        self.sep, self.unk, self.mask, self.pad, self.cls = 0, 1, self.size - 3, self.size - 2, self.size - 1
        self.special = frozenset({0, 1, self.mask, self.pad, self.cls})
        self.fingerprint = " ".join(words)

    def encode(self, text):
        known = {word: id for id, word in enumerate(self.words) if id not in self.special}
        return np.array([known.get(word, self.unk) for word in text.split()], np.int32)

    def decode(self, ids):
        return " ".join(self.piece(i) for i in ids)

    def piece(self, id):
        return self.words[id]

    def starts(self, ids):
        return np.ones(ids.shape, bool)


@pytest.fixture(scope="session")
def words():
    return Words


@pytest.fixture
def abc():
    """12 ordinary words a..l, ids 2..13."""
    return Words(list("abcdefghijkl"))


@pytest.fixture(scope="session")
def english() -> SentencePiece:
    return SentencePiece(str(MODEL))
