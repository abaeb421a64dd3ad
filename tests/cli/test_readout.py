"""Baselines of what is held out, for every kind of corruption."""
import dataclasses
import hashlib
import io
import json
import re
import types
from pathlib import Path

import numpy as np
import pytest
import rich.console
from etils import epath

from ptmjax import gin_folder
from ptmjax.cli import readout, train
from ptmjax.data import records
from ptmjax.data.choices import Words
from ptmjax.data.loader import Source
from ptmjax.data.masking import Masking
from ptmjax.data.order import Sequential
from ptmjax.data.pairs import Pairs
from ptmjax.data.spans import Spans
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.types import UserError
from tests import readouts

V = SentencePiece(str(Path(__file__).parents[2] / "tasks/shipped/en_pd_4096.model"), sentinels=20)
RECORDS = [{"tokens": np.array([5, 5, 5, 6 + i % 3] * 5, np.int32), "starts": np.array([0, 7, 14], np.int32),
            "document": np.array([i % 4], np.int32)} for i in range(40)]


def plain(example, rng, lookup):
    """A corruption that knows of no bound and no view."""
    return {key: x for key, x in Masking(V, 24)(example, rng, lookup).items()}


class Held(list):
    folder = Path("t-validation-1")


def data(corruption, shown):
    source = lambda c: Source(RECORDS, Sequential(len(RECORDS)), c, 0, "t")
    counts = np.bincount(np.concatenate([r["tokens"] for r in RECORDS]), minlength=V.size)
    counts[V.unk], counts[V.sep] = 10**6, 10**5  # much of the text, and never a target of these
    part = types.SimpleNamespace(corruption=corruption, readout=shown, heldout_source=source(shown), shown=lambda heldout: len(RECORDS),
                                 training=types.SimpleNamespace(folder=Path("t-train-1")), validation=Held(RECORDS))
    return types.SimpleNamespace(source=source(corruption), heldout_source=source(shown), parts=[part], shares={"t": 1.0},
                                 training=types.SimpleNamespace(counts=counts),
                                 stage=types.SimpleNamespace(heldout=None), task=types.SimpleNamespace(name="t", vocabulary=V))


@pytest.mark.parametrize("corruption, bounded, view", [
    (Masking(V, 24), True, "[MASK]"), (Masking(V, 24, choice=Words()), True, "[MASK]"), (Pairs(Masking(V, 24)), True, "[MASK]"),
    (Spans(V, 20), False, "first token of every span"), (plain, False, ""),
], ids=["masking", "whole", "pairs", "spans", "plain"])  # fmt: skip
def test_baselines_ask_the_corruption(corruption, bounded, view):
    shown = corruption.readout() if view else corruption
    mine = data(corruption, shown)
    found = readout.baselines(mine)
    rows = mine.heldout_source.examples(np.arange(len(RECORDS)))
    targets = rows["targets"][rows["weights"] > 0]
    assert set(np.unique(targets)) <= {5, 6, 7, 8}  # no sentinel, no EOS
    p = (mine.training.counts + 1) / (mine.training.counts + 1)[V.ordinary].sum()
    assert found["unigram"] == pytest.approx(-np.log(p[targets]).mean()) and found["majority"] == pytest.approx((targets == 5).mean())
    assert ("no_context_bound" in found) == bounded
    if bounded:
        assert 0 < found["no_context_bound"] < found["unigram"]
    said = readout.shown_masked(mine)
    assert view in said if view else said == ""


def test_what_is_scored_though_it_is_a_symbol_counts():
    """A corruption that scores SEP as well has it among its targets: no infinite loss, and it is the most frequent."""
    def scored(example, rng, lookup):
        out = plain(example, rng, lookup)
        return out | {"weights": out["segments"].astype(np.float32) * (out["targets"] != V.cls)}

    mine = data(scored, scored)
    found, can = readout.baselines(mine), np.append(V.ordinary, V.sep)
    p = (mine.training.counts + 1) / (mine.training.counts + 1)[can].sum()
    targets = np.concatenate([[*r["tokens"], V.sep] for r in RECORDS])
    assert found["unigram"] == pytest.approx(-np.log(p[targets]).mean()) and found["majority"] == pytest.approx((targets == V.sep).mean())


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


# ------------------------------------------------------------------ the recorded control
OF = {"task": "t", "train": "t-train-1", "vocabulary": V.fingerprint}
GOOD = {"data": OF, "step": 7, "mlm": 6.28, "accuracy": 0.0531}
MASKED = {"step": 4, "set": "validation", "records": 3, "loss": 3.0, "mlm": 3.0, "accuracy": 0.2}
RTD = {"step": 4, "set": "validation", "records": 3, "loss": 3.0, "f1": 0.5, "replaced": 0.1}


def test_the_table_of_the_demos(capsys, monkeypatch):
    found = {"mlm": 4.0, "accuracy": 0.2, "unigram": 6.0, "majority": 0.05, "nsp_recall_0": 0.5, "nsp_recall_1": 0.7}
    control = found | {"mlm": 6.1, "accuracy": 0.04, "nsp_recall_1": 0.5}
    assert readouts.CONTROLS.keys() == {path.stem for path in gin_folder().glob("*_demo.gin")}
    told = []
    monkeypatch.setattr(readouts, "trained", lambda name, folder, words: told.append((str(folder), words)) or (control if "_control" in str(folder) else found))
    readouts.main("x", "--gin.STEPS=2")
    lines = capsys.readouterr().out.splitlines()
    assert len(told) == 2 * len(readouts.CONTROLS) and ("x/bert_demo_control", ["--gin.STEPS=2", "--gin.Context.see=@masks.own"]) in told
    assert len(lines) == 2 + 3 * len(readouts.CONTROLS) and "| bert_demo | mlm | 4.000 | 6.100 | 6.000 |" in lines
    assert readouts.rows(found, control) == [("mlm", 4.0, 6.1, 6.0), ("accuracy", 0.2, 0.04, 0.05), ("balanced accuracy of nsp", pytest.approx(0.6), 0.5, 0.5)]


def concluded(tmp_path, last, control):
    """What `ptmjax train` says after its last step, with such a control beside its gin file."""
    for name in ("metrics.jsonl", "timing.jsonl"):
        (tmp_path / name).write_text(json.dumps({**last, "seconds": 1.0, "tokens": 5}) + "\n")
    (tmp_path / "mine.gin").write_text("")
    if control is not None:
        (tmp_path / "mine.control.json").write_text(control)
    console = rich.console.Console(record=True, width=300, file=io.StringIO())
    train.conclude(types.SimpleNamespace(workdir=epath.Path(tmp_path), gin_files=[str(tmp_path / "mine.gin")]), data(plain, plain), console, 4)
    return console.export_text()


def test_a_control_of_the_same_data_is_shown_with_its_steps(tmp_path):
    said = concluded(tmp_path, MASKED, json.dumps(GOOD))
    assert "recorded control (7 steps)" in said and "6.280" in said and "not shown" not in said
    assert "recorded control, memory cut (7 steps)" in concluded(tmp_path, MASKED, json.dumps(GOOD | {"control": "memory cut"}))
    assert json.loads((tmp_path / "summary.json").read_text())["data"] == OF
    (tmp_path / "without").mkdir()
    assert "recorded control" not in (said := concluded(tmp_path / "without", MASKED, None)) and "not shown" not in said


def test_a_summary_is_a_control(tmp_path):
    """The way to make one: copy the summary.json of the control run beside the gin file."""
    concluded(tmp_path, MASKED, None)
    said = concluded(tmp_path, MASKED | {"mlm": 1.0}, (tmp_path / "summary.json").read_text())
    assert "recorded control (4 steps)" in said and "3.000" in said and "1.000" in said


@pytest.mark.parametrize("last, control, why", [
    (MASKED, GOOD | {"data": OF | {"train": "t-train-2"}}, r"of other data \(training records"),
    (MASKED, GOOD | {"data": OF | {"task": "s", "vocabulary": ""}}, r"of other data \(task, vocabulary"),
    (MASKED, {"step": 7, "mlm": 6.28, "accuracy": 0.05}, "does not say of what data"),
    (MASKED, GOOD | {"step": "7"}, "does not say of what data and how many steps"),
    (MASKED, {"data": OF, "step": 7, "mlm": 6.28}, "has no number accuracy"),
    (MASKED, GOOD | {"mlm": "6"}, "has no number mlm"),
    (RTD, GOOD, "has no number f1"),
    (MASKED, [1], "does not say of what data"),
    (MASKED, None, "cannot be read"),
], ids=str)  # fmt: skip
def test_another_control_is_one_line_and_the_run_succeeds(tmp_path, last, control, why):
    said = concluded(tmp_path, last, "{half" if control is None else json.dumps(control))
    (line,) = [line for line in said.splitlines() if "not shown" in line]
    assert re.search(why, line) and "mine.control.json" in line and "steps)" not in said and "curve.png" in said


def test_a_gin_file_that_is_gone_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(readout, "curve", lambda *_: (tmp_path / "mine.gin").unlink())
    assert "the last evaluation and its baselines" in concluded(tmp_path, MASKED, json.dumps(GOOD))


def test_the_shipped_control_is_of_the_shipped_text(tmp_path):
    from ptmjax.tasks import pretrain  # noqa: F401  registers

    from ptmjax.data import registry

    held = json.loads((Path(__file__).parents[2] / "gin/bert_demo.control.json").read_text())
    task = registry.read("en_pd_mlm_64")
    key = hashlib.sha256(json.dumps(records.describe(task, "train", str(tmp_path)), sort_keys=True).encode()).hexdigest()[:16]
    assert held["data"] == {"task": task.name, "train": f"{task.name}-train-{key}", "vocabulary": task.vocabulary.fingerprint}
    assert 0.99 < held["mlm"] / 6.271 < 1.01 and held["step"] == 2000
