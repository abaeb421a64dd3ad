"""Baselines of what is held out, for every kind of corruption."""
import dataclasses
import types
from pathlib import Path

import numpy as np
import pytest

from ptmjax.cli import readout
from ptmjax.data.loader import Source
from ptmjax.data.masking import Masking
from ptmjax.data.order import Sequential
from ptmjax.data.pairs import Pairs
from ptmjax.data.spans import Spans
from ptmjax.data.vocabulary import SentencePiece

V = SentencePiece(str(Path(__file__).parents[2] / "tasks/shipped/en_pd_4096.model"), sentinels=20)
RECORDS = [{"tokens": np.array([5, 5, 5, 6 + i % 3] * 5, np.int32), "starts": np.array([0, 7, 14], np.int32),
            "document": np.array([i % 4], np.int32)} for i in range(40)]


def plain(example, rng, lookup):
    """A corruption that knows of no bound and no view."""
    return {key: x for key, x in Masking(V, 24)(example, rng, lookup).items()}


def data(corruption, shown):
    source = lambda c: Source(RECORDS, Sequential(len(RECORDS)), c, 0, "t")
    counts = np.bincount(np.concatenate([r["tokens"] for r in RECORDS]), minlength=V.size)
    return types.SimpleNamespace(source=source(corruption), heldout_source=source(shown), validation=RECORDS,
                                 training=types.SimpleNamespace(counts=counts), stage=types.SimpleNamespace(heldout=None))


@pytest.mark.parametrize("corruption, bounded, view", [
    (Masking(V, 24), True, "[MASK]"), (Masking(V, 24, whole=True), True, "[MASK]"), (Pairs(Masking(V, 24)), True, "[MASK]"),
    (Spans(V, 20), False, "words of the spans"), (plain, False, ""),
], ids=["masking", "whole", "pairs", "spans", "plain"])  # fmt: skip
def test_baselines_ask_the_corruption(corruption, bounded, view):
    shown = corruption.readout() if view else corruption
    mine = data(corruption, shown)
    found = readout.baselines(mine)
    rows = mine.heldout_source.examples(np.arange(len(RECORDS)))
    targets = rows["targets"][rows["weights"] > 0]
    assert set(np.unique(targets)) <= {5, 6, 7, 8}  # no sentinel, no EOS
    p = (mine.training.counts + 1) / (mine.training.counts + 1).sum()
    assert found["unigram"] == pytest.approx(-np.log(p[targets]).mean()) and found["majority"] == pytest.approx((targets == 5).mean())
    assert ("no_context_bound" in found) == bounded
    if bounded:
        assert 0 < found["no_context_bound"] < found["unigram"]
    said = readout.shown_masked(mine)
    assert view in said if view else said == ""


def test_what_has_no_token_targets_has_no_baselines():
    label = dataclasses.make_dataclass("Label", [])
    label.__call__ = lambda self, example, rng, lookup: {"label": np.int32(1)}
    assert readout.baselines(data(label(), label())) == {}
