"""Each objective of the shipped demos learns 64 rows of the shipped text by heart."""
import dataclasses
import functools
import itertools
import lzma

import jax
import pytest
from ptmjax.tasks.corpora import EN_PD_SMALL

from ptmjax.cli import session
from ptmjax.cli.experiment import Data
from ptmjax.data import adapters
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import loop
from ptmjax.training.metrics import read_lines

ROWS = 64
SMALL = ["STEPS=500", "WARMUP=50", "Every.log=0", "Every.evaluate=0", "Every.save=0", "Stage.dupe_factor=1"]  # masks of the first epoch


@pytest.fixture
def by_heart(tmp_path, monkeypatch):
    """Tasks read 64 records, and those held out are the same in the same corruption."""
    with lzma.open(EN_PD_SMALL, "rt", encoding="utf-8") as text:
        (tmp_path / "text.txt").write_text("".join(itertools.islice(text, 600)), encoding="utf-8")
    less = lambda data: dataclasses.replace(adapters.read(data.stage.task), text=str(tmp_path / "text.txt"), readout=None)
    few = lambda data: [data.records("train")[i] for i in range(ROWS)]
    for name, found in (("task", less), ("training", few), ("validation", few)):
        found = functools.cached_property(found)
        found.__set_name__(Data, name)
        monkeypatch.setattr(Data, name, found)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("file", "more", "least"), [
    ("bert_nsp_demo", ["linear.peak=1e-3"], {"accuracy": 0.95, "nsp_accuracy": 0.95}),
    ("t5_demo", [], {"accuracy": 0.95}),
    ("electra_demo", ["linear.peak=1e-3"], {"generator_accuracy": 0.95}),
    ("electra_demo", ["linear.peak=1e-3", "Stage.frozen=['generator/*']"], {"f1": 0.9, "auc": 0.95}),
])
def test_64_rows_are_learnt_by_heart(file, more, least, by_heart, number):
    found = session.experiment([f"{file}.gin"], [*SMALL, *more])
    (data,) = found.data(by_heart / "cache")
    loop.train([found.stage(data)], by_heart / "run", make_mesh("", jax.devices()[:1]), seed=found.seed, every=found.every, say=print)
    line = read_lines(by_heart / "run/metrics.jsonl")[-1]
    number("64 rows by heart", {name: line[name] for name in least})
    assert line["set"] == "validation" and line["records"] == ROWS
    assert all(line[name] > x for name, x in least.items()), line
