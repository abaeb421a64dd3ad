"""Baselines of what is held out, for every kind of corruption."""
import dataclasses
import io
import json
import types
from pathlib import Path

import numpy as np
import pytest
import rich.console
from etils import epath

from ptmjax.cli import readout
from ptmjax.data.loader import Source
from ptmjax.data.masking import Masking
from ptmjax.data.order import Sequential
from ptmjax.data.pairs import Pairs
from ptmjax.data.spans import Spans
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.types import UserError

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


# ------------------------------------------------------------------ runs that came apart, files that were damaged
LAST = {"step": 4, "set": "validation", "records": 3, "loss": None, "mlm": None, "accuracy": 0.0, "unigram": 3.5, "majority": 0.1,
        "sop_recall_0": None, "sop_recall_1": 1.0, "f1": None, "replaced": None, "auc": None}  # fmt: skip


@pytest.mark.parametrize("control", [None, LAST | {"mlm": 3.0}])
def test_numbers_that_are_not_finite_are_shown(control):
    console = rich.console.Console(record=True, width=200, file=io.StringIO())
    for table in readout.tables(LAST, control, " on [MASK]"):
        console.print(table)
    said = console.export_text()
    assert said.count("not finite") >= 3 and "3.500" in said and "None" not in said and "nan" not in said


def test_replaced_tokens_are_measured_with_and_without_a_threshold():
    rows = readout.measures({"f1": 0.0, "replaced": 0.25, "auc": 0.7})
    assert rows == [("F1 of replaced (calling all replaced)", 0.0, 0.4), ("AUC of replaced, within rows", 0.7, 0.5)]


@pytest.mark.parametrize("lines", [[LAST, {"step": 1, "loss": None}], []], ids=["none finite", "no line"])
def test_a_curve_of_what_there_is(tmp_path, lines):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    readout.curve(epath.Path(tmp_path), LAST, "")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_summary_without_lines_or_place_is_one_line(tmp_path):
    mine, folder = data(plain, plain), epath.Path(tmp_path)
    with pytest.raises(UserError, match="metrics.jsonl holds no evaluation .*removed.*ptmjax eval --workdir"):
        readout.summary(folder, mine)
    assert not (tmp_path / "summary.json").exists()
    (tmp_path / "metrics.jsonl").write_text(json.dumps(LAST) + "\n")
    for name in ("summary.json", "curve.png"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="summary.json cannot be written .*: move what lies there away and start again"):
        readout.summary(folder, mine)
    with pytest.raises(UserError, match="curve.png cannot be written .*: move what lies there away and start again"):
        readout.curve(folder, LAST, "")
