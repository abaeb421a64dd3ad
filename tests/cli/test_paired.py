"""Paired differences: by hand, and beside SciPy's bootstrap."""
import numpy as np
import pytest
from scipy import stats

from ptmjax.cli import paired
from ptmjax.cli.paired import Sums


def test_by_hand():
    values, first = {0: 1.0, 1: 4.0, 2: None, 3: 3.0}, {0: 0.5, 1: 2.0, 2: 7.0, 3: None}
    found = paired.compared(values, first, {}, {})
    assert found.mean == pytest.approx(8 / 3) and found.deviation == pytest.approx((7 / 3) ** 0.5)
    assert found.difference == pytest.approx((0.5 + 2.0) / 2) and found.seeds == (0.5, 2.0) and found.documents is None
    alone = paired.compared({0: 2.0}, {0: 1.0}, {}, {})
    assert (alone.deviation, alone.difference, alone.seeds) == (None, 1.0, None)
    base = paired.compared(first, first, {}, {}, is_first=True)
    assert base.difference is None and base.seeds is None and base.mean == pytest.approx(9.5 / 3)
    none = paired.compared({0: None}, {0: 1.0}, {}, {})
    assert none[1:] == (None,) * 5


def test_over_seeds_is_scipys():
    x = np.random.default_rng(3).normal(0.3, 1.0, 12)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    found = paired.over_seeds(x)
    assert found == pytest.approx(tuple(theirs), abs=0.03) and found == paired.over_seeds(list(x))


def sums(rng, documents=40, rows=200, shift=0.0):
    of = np.sort(rng.integers(documents, size=rows))
    weight = rng.integers(1, 9, rows).astype(float)
    return of, (rng.normal(2 + of / 20, 1) + shift) * weight, weight


def test_over_documents_is_scipys():
    """Whole documents are drawn, the same for both runs; the number is a ratio of sums."""
    rng = np.random.default_rng(0)
    a, b = Sums.of(*sums(rng, shift=0.2)), Sums.of(*sums(np.random.default_rng(0)))
    one = lambda s, i: s.value[i].sum(-1) / s.weight[i].sum(-1)
    index = np.arange(len(a.document))
    statistic = lambda i, axis: one(a, i.astype(int)) - one(b, i.astype(int))
    for other in (b, Sums.of(*(lambda of, value, weight: (of, value[::-1] * weight / weight[::-1], weight))(*sums(np.random.default_rng(0))))):
        b = other
        theirs = stats.bootstrap((index,), statistic, n_resamples=10_000, vectorized=True, method="percentile", rng=np.random.default_rng(1)).confidence_interval
        found = paired.over_documents([a], [b])
        assert found == pytest.approx(tuple(theirs), abs=0.02 + 0.05 * (theirs.high - theirs.low)), theirs


def test_pairing_takes_out_what_runs_share():
    a, b = Sums.of(*sums(np.random.default_rng(0), shift=0.2)), Sums.of(*sums(np.random.default_rng(0)))
    assert paired.over_documents([a, a], [b, b]) == pytest.approx((0.2, 0.2)) and paired.over_documents([a], [a]) == (0, 0)
    assert a.number - b.number == pytest.approx(0.2)


def test_draws_in_parts_and_what_cannot_be_drawn(monkeypatch):
    a, b = Sums.of(*sums(np.random.default_rng(0), shift=0.2)), Sums.of(*sums(np.random.default_rng(5)))
    whole = paired.over_documents([a], [b])
    monkeypatch.setattr(paired, "ROOM", 40 * 999)
    assert paired.over_documents([a], [b]) == pytest.approx(whole)
    assert paired.over_documents([Sums.of(*np.ones((3, 2)))], [Sums.of(*np.ones((3, 2)))]) is None  # one document
    other = Sums(a.document + 1, a.value, a.weight)
    assert paired.over_documents([a], [other]) is None
    one = Sums(np.arange(2), np.array([0.0, 1.0]), np.array([0.0, 1.0]))  # a document without weight: drawn alone, it says nothing
    assert paired.over_documents([one], [one]) == (0, 0)
