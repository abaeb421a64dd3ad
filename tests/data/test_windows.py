import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.windows import Blocks, Stream
from ptmjax.types import UserError

TEXTS = ["a b c d e", "f g h i", "a b c d e", "j"]


def test_blocks(abc):
    counts = collections.Counter()
    made = list(Blocks(3, minimum=2)(TEXTS, abc, counts))
    assert [abc.decode(r["tokens"]) for r in made] == ["a b c", "d e", "f g h", "a b c", "d e"]
    assert counts == dict(documents=4, tokens=13, dropped=1, dropped_tokens=2)
    number = [r["document"].item() for r in made]
    assert number[0] == number[1] == number[3] != number[2]  # the same text is the same document
    assert all(r["tokens"].dtype == np.int32 and r["document"].dtype == np.int32 and r["document"].shape == (1,) for r in made)


def test_blocks_keep_a_corpus_shorter_than_one_block(abc):
    assert [abc.decode(r["tokens"]) for r in Blocks(100)(["a b"], abc)] == ["a b"]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 9), st.data())
def test_blocks_lose_only_short_tails(sizes, length, data):
    vocabulary = type("Ids", (), {"encode": staticmethod(lambda text: np.arange(len(text), dtype=np.int32))})
    minimum, counts = data.draw(st.integers(1, length)), collections.Counter()
    made = list(Blocks(length, minimum)(["x" * n for n in sizes], vocabulary, counts))
    assert sum(len(r["tokens"]) for r in made) == counts["tokens"] == sum(sizes) - counts["dropped_tokens"]
    assert all(minimum <= len(r["tokens"]) <= length for r in made)
    assert counts["dropped_tokens"] <= (minimum - 1) * len(sizes)


def test_stream_overlaps_by_one_and_separates_documents(abc):
    counts = collections.Counter()
    made = [r["tokens"] for r in Stream(4)(["a b c", "d", "e f g h i"], abc, counts)]
    assert [abc.decode(t) for t in made] == ["a b c [SEP] d", "d [SEP] e f g"]
    assert all(a[-1] == b[0] for a, b in zip(made, made[1:]))
    assert counts == dict(documents=3, tokens=12, dropped_tokens=3)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 9))
def test_stream_is_the_text(sizes, length):
    vocabulary = type("Ids", (), {"encode": staticmethod(lambda text: np.arange(1, len(text) + 1, dtype=np.int32)), "sep": 0})
    made = [r["tokens"] for r in Stream(length)(["x" * n for n in sizes], vocabulary)]
    whole = np.concatenate([np.r_[np.arange(1, n + 1), 0] for n in sizes])
    joined = np.concatenate([t[: -1] for t in made] + [made[-1][-1:]]) if made else whole[:0]
    assert joined.tolist() == whole[: len(joined)].tolist()
    assert len(whole) - len(joined) <= length


def test_settings_that_cannot_be():
    with pytest.raises(UserError, match="shortest block, 5, must lie in 1..4"):
        Blocks(4, minimum=5)
    for cut in (Blocks, Stream):
        with pytest.raises(UserError, match="a cut of 0 tokens"):
            cut(0)
