"""The benchmarks run and print what they promise; nothing is timed."""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers  # noqa: F401  both hold ours to it

from ptmjax.data.spans import lengths
from tests.bench import input as benchmark
from tests.bench import systems, timing
from tests.bench.systems import SYSTEMS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # most of it is four processes that import torch and jax


def run(module: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", f"tests.bench.{module}", "--tiny", "--repeat=1", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """(what it printed, the file it wrote)"""
    file = tmp_path_factory.mktemp("bench") / "step.json"
    return run("train_step", "--systems", "bert_4x256", f"--json={file}"), file


def test_a_train_step_is_told_as_a_table_and_as_json(step):
    printed, file = step
    rows = [line for line in printed.splitlines() if line.startswith("| bert_4x256")]
    assert [row.split("|")[2].strip() for row in rows] == ["ours", "HF as it comes", "HF tuned"] * 2
    found = json.loads(file.read_text())["systems"][0]
    assert len(found["seconds"]["ours"]) == len(found["seconds"]["tuned"]) == 1 and found["ratio"].keys() == {"as it comes", "tuned"}
    assert min(*found["tokens_per_s"].values(), *found["gemm_gflop_s"].values(), *found["peak_gib"].values()) > 0
    assert found["about"]["ours"]["parameters"] == found["about"]["theirs"]["parameters"]


def test_the_input_is_told_as_a_table_and_as_json(step, tmp_path):
    speeds = json.loads(step[1].read_text())
    speeds["systems"].append({"system": "t5_small", "tokens_per_s": {"ours": 1000.0}})
    (tmp_path / "step.json").write_text(json.dumps(speeds))
    printed = run("input", f"--train={tmp_path / 'step.json'}", f"--json={tmp_path / 'input.json'}")
    found = {one["objective"]: one for one in json.loads((tmp_path / "input.json").read_text())["objectives"]}
    assert {name: len(one["examples_per_s"]) for name, one in found.items()} == {"masks": 3, "words": 3, "spans": 4}
    for name, one in found.items():
        assert printed.count(f"| {name} ") == len(one["examples_per_s"]) and min(one["examples_per_s"].values()) > 0
    share = found["spans"]["share_of_step"]["ours, from ArrayRecord"]
    assert share == pytest.approx(1000 / found["spans"]["examples_per_s"]["ours, from ArrayRecord"] / (64 + lengths(64)[1]))


def test_spans_that_are_not_the_texts_are_found():
    from ptmjax.tasks.corpora import EN_PD_4096_SENTINELS as v

    last = v.size - 1
    inputs = np.array([10, 11, last, 14, last - 1, v.eos, v.pad])
    np.testing.assert_array_equal(benchmark.rebuilt(inputs, np.array([last, 12, 13, last - 1, 15, v.eos]), v), [10, 11, 12, 13, 14, 15])
    assert benchmark.rebuilt(inputs, np.array([last - 1, 12, last, 15, v.eos]), v).tolist() == [-1]
    with pytest.raises(SystemExit, match="x: .* is not in the text"):
        text = "it was dark in the wood and he looked at her"
        tokens = v.encode(text)
        wrong = {"tokens": [np.array([*tokens[:3], last, v.eos])], "targets": [np.array([last, *tokens[4:6], v.eos])]}
        benchmark.checked({"x": iter([wrong])}, [text], v)


def test_flops_are_those_of_a_dense_step_worked_by_hand():
    """BERT-base: 85 M weights of layers over 2048 positions, the head over 320, 6 FLOPs a weight and position; and the scores."""
    weights, head = 12 * (4 * 768**2 + 2 * 768 * 3072), 768**2 + 768 * 30522
    assert SYSTEMS["bert_base"].flops() == 6 * (2048 * weights + 320 * head + 12 * 16 * 128 * 128 * 2 * 768)
    t5 = 6 * (4 * 512**2 + 2 * 512 * 2048)
    cross, pairs = 6 * 2 * 512**2 * (512 + 114), 6 * 2 * 512 * (512**2 + 114**2 + 512 * 114)
    assert SYSTEMS["t5_small"].flops() == 6 * 4 * (t5 * (512 + 114) + cross + pairs + 114 * 512 * 32128)


@pytest.mark.parametrize("name", SYSTEMS)
def test_batches_are_the_same_for_both_sides_and_score_as_many_as_there_are_slots(name):
    system = systems.tiny(SYSTEMS[name])
    a, b = system.batch(0), system.batch(0)
    assert all((a[key] == b[key]).all() for key in a) and (a["tokens"] != system.batch(1)["tokens"]).any()
    assert (a["weights"].sum(1) == system.slots).all() and a["tokens"].max() < system.vocabulary


def test_the_ratio_is_of_medians_and_its_quartiles_are_of_turns():
    found = timing.ratio([1.0, 2.0, 4.0], [2.0, 2.0, 12.0])
    assert found == {"of_medians": 1.0, "low": 1.5, "high": 2.5}
