import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.windows import Blocks, Joined, Sentences, Stream
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


def test_sentences_are_packed_whole(abc):
    counts = collections.Counter()
    made = list(Sentences(6, minimum=2)(["a b c\nd e\nf g\nh\na b c d e f g h i\nj", "k\n\nk", "l"], abc, counts))
    assert [(abc.decode(r["tokens"]), r["starts"].tolist()) for r in made] == [
        ("a b c d e", [0, 3]), ("f g h", [0, 2]), ("a b c d e f", [0]), ("g h i j", [0, 3]), ("k k", [0, 1])]  # a sentence of 9 is cut into 6 and 3
    assert [r["document"].item() == made[0]["document"].item() for r in made] == [True] * 4 + [False]
    assert counts == dict(documents=3, tokens=20, dropped=1, dropped_tokens=1)
    assert {key: x.dtype.name for key, x in made[0].items()} == Sentences.schema


@settings(derandomize=True, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), max_size=4), st.integers(1, 10), st.data())
def test_sentences_lose_only_short_blocks(documents, length, data):
    vocabulary = type("Ids", (), {"encode": staticmethod(lambda text: np.arange(len(text), dtype=np.int32))})
    minimum, counts = data.draw(st.integers(1, length)), collections.Counter()
    made = list(Sentences(length, minimum)(["\n".join("x" * n for n in sizes) for sizes in documents], vocabulary, counts))
    assert sum(len(r["tokens"]) for r in made) == counts["tokens"] == sum(map(sum, documents)) - counts["dropped_tokens"]
    for r in made:
        assert minimum <= len(r["tokens"]) <= length and r["starts"][0] == 0 and (np.diff(r["starts"]) > 0).all()
        assert (r["tokens"][r["starts"]] % length == 0).all()  # a sentence's first token, or the first of a part of it
    if minimum == 1:
        whole = [n for sizes in documents for n in sizes]
        assert sum(len(r["starts"]) for r in made) == sum(-(-n // length) for n in whole)


def test_joined_crosses_documents_and_keeps_a_last_long_enough(abc):
    for minimum, last in ((1, ["i j"]), (2, ["i j"]), (3, [])):
        counts = collections.Counter()
        made = list(Joined(4, minimum)(["a b c", "d e f g h", "i j"], abc, counts))
        assert [abc.decode(r["tokens"]) for r in made] == ["a b c d", "e f g h", *last]
        assert counts == dict(documents=3, tokens=10 if last else 8, **({} if last else {"dropped_tokens": 2}))
    assert list(Joined(4)([], abc)) == []


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=6), st.integers(1, 9))
def test_joined_is_the_text(sizes, length):
    vocabulary = type("Ids", (), {"encode": staticmethod(lambda text: np.arange(len(text), dtype=np.int32))})
    made = [r["tokens"] for r in Joined(length)(["x" * n for n in sizes], vocabulary)]
    assert all(len(t) == length for t in made[:-1])
    assert np.concatenate([np.zeros(0, np.int32), *made]).tolist() == [i for n in sizes for i in range(n)]


def test_settings_that_cannot_be():
    for cut in (Blocks, Sentences, Joined):
        with pytest.raises(UserError, match="shortest block, 5, must lie in 1..4"):
            cut(4, minimum=5)
    for cut in (Blocks, Stream, Sentences, Joined):
        with pytest.raises(UserError, match="a cut of 0 tokens"):
            cut(0)
