"""Every shipped gin file: shrunk by its own macros and trained through all of its stages, some traced as they are; its form."""
import itertools
import re

import jax
import ptmjax.tasks  # noqa: F401  registers
import pytest

from ptmjax import gin_folder
from ptmjax.cli import config, session
from ptmjax.cli.experiment import Data, Experiment
from ptmjax.cli.list import about
from ptmjax.cli.train import check_one_vocabulary
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import loop
from ptmjax.training.metrics import read_lines
from tests.shipped import read_less

FILES = sorted(gin_folder().glob("*.gin"))
TINY = dict(V=4224, E=16, D=16, LAYERS=1, HEADS=2, SIZE=8, HIDDEN=32, GD=8, GHEADS=1, GHIDDEN=16, BATCH=4, STEPS=3, STEPS_SHORT=2,
            STEPS_LONG=2, STEPS_BASIC=1, STEPS_PHRASE=1, STEPS_ENTITY=1, WARMUP=1)  # the rest (lengths, slots, rates) stays as it is
ALWAYS = ["Every.log=1", "Every.evaluate=0", "Every.save=0", "Stage.heldout=6"]
AGAIN = re.compile("_(small|x*large|3b|11b|base_wwm)$|^(bert_base_mlm|electra_base|t5_(v1_1_)?base|pmi_demo)$|^(mbert|xlmr|xlm_mlm|spanbert|structbert|unilm|roberta|albert|macbert|ernie)_(?!demo)")
# shrunk, what their base, demo or BERT is
shipped = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
once = pytest.mark.parametrize("path", [pytest.param(p, marks=[pytest.mark.slow] * bool(AGAIN.search(p.stem)), id=p.stem) for p in FILES])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder for the caches, with 250 lines of the shipped text in place of the whole; the tasks are otherwise as shipped."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        read_less(patch, folder, 250, holdout=5)
        yield folder


def staged(found: Experiment, cache) -> tuple[list[Data], list[loop.Stage]]:
    """What `ptmjax train` makes of it, checked as it does."""
    data = found.data(cache)
    stages = [found.stage(d) for d in data]
    check_one_vocabulary(data)
    for d, stage in zip(data, stages):
        d.check_vocabulary(stage.build)
    config.check_used()
    return data, stages


@pytest.mark.parametrize("name", ["bert_large", "t5_11b", "electra_large", "bert_base_mlm", "electra_base", "t5_base", "t5_v1_1_base", "pmi_demo"])
def test_the_largest_and_some_others_are_traced_as_they_are(name, home):
    found = session.experiment([name], [])
    for data, stage in zip(*staged(found, home / "cache")):
        plan = loop.plan_of(stage, make_mesh("", jax.devices()[:1]), found.seed, found.steps)
        loop.rehearse(plan, data.source.spec, data.heldout_source.spec)


@once
def test_it_is_trained_shrunk(path, home, tmp_path):
    staged(session.experiment([path.name], []), home / "cache")
    macros = re.findall(r"^([A-Z_]+) = ", config.operative(), re.M)
    found = session.experiment([path.name], [*(f"{name}={TINY[name]}" for name in macros if name in TINY), *ALWAYS])
    data, stages = staged(found, home / "cache")
    assert all(stage.build.count() < 250_000 for stage in stages), "a size has no macro"
    assert found.steps <= 4 and all(stage.rows == 4 for stage in stages), "a length has no macro"
    loop.train(stages, tmp_path, make_mesh("", jax.devices()[:1]), seed=found.seed, every=found.every, say=print)
    lines = read_lines(tmp_path / "metrics.jsonl")
    ends = list(itertools.accumulate(stage.steps for stage in found.stages))
    assert [line["step"] for line in lines if "set" not in line] == list(range(1, found.steps + 1))
    assert [line["step"] for line in lines if line.get("set") == "validation"] == ends
    for line in lines:
        assert 0 < line["loss"] < 100 and line.get("overflow", 0) == 0
        assert "set" in line or not line["skipped"] and all(line[name] == 0 for name in line if name.startswith("gap/"))
        assert "set" in line or line["rate"] > 0 or line["step"] == 1
    tasks = {"validation": len(data[-1].parts)}
    assert all(line["records"] == 6 * tasks.get(line["set"], 1) for line in lines if "set" in line)


@shipped
def test_its_form(path):
    """A run file is short, opens with the paper and what to expect, and `ptmjax list` shows a sentence that says what it is."""
    text = path.read_text(encoding="utf-8")
    head = " ".join(line.removeprefix("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()))
    assert text.count("\n") <= 40 and max(map(len, text.splitlines())) <= 140
    assert re.search(r" \d{4}, arXiv \d{4}\.\d{5}", head) and "Expect" in head
    assert 40 <= len(about(path)) <= 150 and about(path).endswith(".")


def depth(path) -> int:
    includes = re.findall(r'^include "(.*)"', path.read_text(encoding="utf-8"), re.M)
    return max((1 + depth(path.parent / name if (path.parent / name).exists() else gin_folder() / name) for name in includes), default=0)


@shipped
def test_it_is_read_without_a_chase(path):
    assert depth(path) <= 2
