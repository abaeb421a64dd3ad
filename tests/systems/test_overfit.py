"""Each objective of the shipped demos learns 64 rows of the shipped text by heart."""

import jax
import pytest

from ptmjax.cli import session
from ptmjax.cli.part import Part
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import loop
from ptmjax.training.metrics import read_lines
from tests.shipped import in_place_of, read_less

ROWS = 64
SMALL = ["STEPS=500", "BATCH=32", "LAYERS=2", "Every.log=0", "Every.evaluate=0", "Every.save=0", "Stage.dupe_factor=1"]  # masks of the first epoch


@pytest.fixture
def by_heart(tmp_path, monkeypatch):
    """Tasks read 64 records, and those held out are the same in the same corruption."""
    read_less(monkeypatch, tmp_path, 600, readout=None)
    few = lambda part: [part.records("train")[i] for i in range(ROWS)]
    in_place_of(monkeypatch, Part, "training", few)
    in_place_of(monkeypatch, Part, "validation", few)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("file", "more", "least"), [
    ("bert_nsp_demo", ["linear.peak=2e-3"], {"accuracy": 0.95, "nsp_accuracy": 0.95}),
    ("spanbert_demo", ["linear.peak=2e-3"], {"accuracy": 0.95, "sbo_accuracy": 0.9}),
    ("structbert_demo", ["linear.peak=2e-3"], {"accuracy": 0.95, "order_accuracy": 0.95, "sentence_accuracy": 0.95}),
    ("unilm_demo", ["linear.peak=2e-3"], {"accuracy": 0.9, "nsp_accuracy": 0.95}),
    ("roberta_demo", ["linear.peak=2e-3"], {"accuracy": 0.95}),
    ("albert_demo", ["linear.peak=2e-3", "STEPS=900"], {"accuracy": 0.95}),
    ("macbert_demo", ["linear.peak=2e-3"], {"accuracy": 0.95, "sop_accuracy": 0.95}),
    ("ernie_demo", ["linear.peak=2e-3"], {"accuracy": 0.95}),
    ("t5_demo", ["rsqrt.warmup=50"], {"accuracy": 0.95}),
    ("electra_demo", ["linear.peak=2e-3"], {"generator_accuracy": 0.95}),
    ("electra_demo", ["linear.peak=2e-3", "Stage.frozen=['generator/*']"], {"f1": 0.9, "auc": 0.95}),
])
def test_64_rows_are_learnt_by_heart(file, more, least, by_heart, number):
    found = session.experiment([f"{file}.gin"], [*SMALL, *more])
    (data,) = found.data(by_heart / "cache")
    loop.train([found.stage(data)], by_heart / "run", make_mesh("", jax.devices()[:1]), seed=found.seed, every=found.every, say=print)
    line = read_lines(by_heart / "run/metrics.jsonl")[-1]
    number("64 rows by heart", {name: line[name] for name in least})
    assert line["set"] == "validation" and line["records"] == ROWS
    assert all(line[name] > x for name, x in least.items()), line
