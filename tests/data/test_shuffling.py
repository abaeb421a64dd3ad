import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.data.pairs import Pairs
from ptmjax.data.shuffling import Shuffled
from ptmjax.types import UserError


def many(corruption, record, n, lookup=()):
    return corruption.rows([record] * n, [counter(0, "t", i, 0) for i in range(n)], lookup)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, 60), st.sampled_from([0.05, 0.3, 1.0]), st.integers(2, 4), st.integers(0, 1000))
def test_what_is_shuffled(english, n, share, size, seed):
    """Whole runs of places that are not predicted, each holding its own tokens in some order; nothing else changes."""
    inner = Masking(english, 64)
    record = {"tokens": (5 + np.random.default_rng(seed).permutation(4000)[:n]).astype(np.int32)}
    rng = lambda: counter(0, "t", seed, 0)
    plain, out = inner(record, rng(), []), Shuffled(inner, share, size)(record, rng(), [])
    assert all((plain[key] == out[key]).all() for key in ("targets", "weights", "segments"))
    moved = out["order_weights"] > 0
    assert not (moved & (out["weights"] > 0)).any() and (plain["tokens"] == out["tokens"])[~moved].all()
    assert moved[0] == 0 and not moved[n + 1 :].any() and moved.sum() % size == 0
    for begin in np.flatnonzero(np.diff(np.append(False, moved).astype(int)) == 1):
        length = int(np.argmin(np.append(moved[begin:], False)))
        for at in range(begin, begin + length, size):
            assert sorted(out["tokens"][at : at + size]) == sorted(out["targets"][at : at + size])
    alone = np.convolve((out["weights"][1 : n + 1] == 0), np.ones(size), "valid") == size if n >= size else np.zeros(0)
    assert moved.sum() // size <= max(1, round(share * alone.sum()))
    assert moved.any() == bool(alone.any())


def test_every_order_is_equally_likely(english):
    """Of three tokens, which are all of the row's that are not predicted: six orders, one of them the old one."""
    out = many(Shuffled(Masking(english, 5, rate=1e-9, cap=1), share=1.0, size=2), {"tokens": np.array([7, 8, 9], np.int32)}, 6000)
    pairs = collections.Counter(tuple(row[1:4]) for row, w in zip(out["tokens"], out["order_weights"]) if w[1] and w[2])
    kept = sum(n for row, n in pairs.items() if row[:2] == (7, 8))
    assert abs(kept / sum(pairs.values()) - 0.5) < 4 * (0.25 / sum(pairs.values())) ** 0.5
    tokens = np.arange(5, 131, dtype=np.int32)
    out = many(Shuffled(Masking(english, 128), 0.05), {"tokens": tokens}, 3000)
    orders = collections.Counter()
    for row, target, w in zip(out["tokens"], out["targets"], out["order_weights"]):
        at = np.flatnonzero(w)
        for run in at.reshape(-1, 3):
            if (np.diff(run) == 1).all():
                orders[tuple((row[run] - target[run[0]]).tolist())] += 1
    assert set(orders) == set(itertools.permutations(range(3)))
    share = np.array(list(orders.values())) / sum(orders.values())
    assert abs(share - 1 / 6).max() < 4 * (0.14 / sum(orders.values())) ** 0.5


def test_five_percent_of_the_trigrams(english):
    """Of the trigrams that masking leaves whole, .05, when no word is said twice: 126 places of which 19 are predicted."""
    out = many(Shuffled(Masking(english, 128)), {"tokens": np.arange(5, 131, dtype=np.int32)}, 2000)
    free = np.zeros((2000, 128), bool)
    free[:, 1:127] = out["weights"][:, 1:127] == 0
    whole = (free[:, :-2] & free[:, 1:-1] & free[:, 2:]).sum(1)
    assert (out["order_weights"].sum(1) == 3 * np.rint(0.05 * whole)).mean() > 0.999


def test_over_pairs(english):
    """Runs do not reach over SEP; the sentence label and types are those of the pairs; the readout masks and shuffles."""
    records = [{"tokens": np.arange(5 + 100 * d, 65 + 100 * d, dtype=np.int32), "starts": np.arange(0, 60, 3, dtype=np.int32),
                "document": np.array([d], np.int32)} for d in range(8)]
    shuffled = Shuffled(Pairs(Masking(english, 29), other=1 / 3, swapped=1 / 3), share=1.0)
    rngs = lambda: [counter(0, "t", i, 0) for i in range(8)]
    plain, out = shuffled.inner.rows(records, rngs(), records), shuffled.rows(records, rngs(), records)
    assert tuple(out) == shuffled.features and (plain["label"] == out["label"]).all() and (plain["types"] == out["types"]).all()
    assert not out["order_weights"][np.isin(out["targets"], [english.cls, english.sep, english.pad])].any()
    read = shuffled.readout().rows(records, rngs(), records)
    assert (read["order_weights"] == out["order_weights"]).all() and (read["tokens"][read["weights"] > 0] == english.mask).all()
    assert shuffled.readout().view and shuffled.bound(np.ones(english.size))["unigram"] > 0


def test_settings_that_cannot_be(english):
    for wrong in (dict(share=0.0), dict(share=1.5), dict(size=1)):
        with pytest.raises(UserError, match="shuffling"):
            Shuffled(Masking(english, 8), **wrong)
