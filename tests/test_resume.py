"""A run that is killed and started again ends as one that was not: the same lines, the same bits."""
import random

import jax
import numpy as np
import pytest

from ptmjax.data import loader, order
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training.metrics import read_lines
from tests.drivers import tiny
from tests.drivers.processes import KILLED, TRAIN, finish, start

STEPS = 14


def driver(folder, *options, code=0):
    """A run in a process of its own, which ends with this code: what it printed."""
    return finish(start([*TRAIN, folder, "--total", STEPS, *options]), code)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """system -> the folder of a run that nothing disturbed; each runs once."""
    folders = {}

    def folder(system):
        if system not in folders:
            folders[system] = tmp_path_factory.mktemp(system)
            driver(folders[system], "--system", system)
        return folders[system]

    return folder


def same(folder, reference):
    """metrics.jsonl byte for byte; parameters, optimizer, carry, key and step bit for bit."""
    assert (folder / "metrics.jsonl").read_bytes() == (reference / "metrics.jsonl").read_bytes()
    found, wanted = np.load(folder / "final.npz"), np.load(reference / "final.npz")
    assert found.files == wanted.files and found["step"] == STEPS
    for name in wanted.files:
        assert found[name].tobytes() == wanted[name].tobytes(), name
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines if "set" not in line] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if "set" in line] == [4, 8, 12, 14]


def steps_in(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize("system", ["lstm", pytest.param("bert", marks=pytest.mark.slow)])
def test_kills_at_named_points(undisturbed, tmp_path, system, number):
    """One run with carry and dropout, killed five times on its way, saved at 3, 6, 9, 12 and 14."""
    drive = lambda *kill, code=KILLED: driver(tmp_path, "--system", system, *(["--kill", *kill] if kill else []), code=code)
    drive("step", 5)
    assert steps_in(tmp_path) == ["3"] and read_lines(tmp_path / "metrics.jsonl")[-1]["step"] == 4
    drive("before_rename", 6)
    assert "3" in steps_in(tmp_path) and "6" not in steps_in(tmp_path) and any("6" in name and "tmp" in name for name in steps_in(tmp_path))
    assert "half-written" in drive("after_rename", 9)
    assert {"6", "9"} <= set(steps_in(tmp_path))
    drive("evaluation", 12)
    assert "9" in steps_in(tmp_path) and read_lines(tmp_path / "metrics.jsonl")[-1]["step"] == 12
    drive("line", 11)
    assert not (tmp_path / "metrics.jsonl").read_text().endswith("\n") and read_lines(tmp_path / "metrics.jsonl")[-1]["step"] == 10
    drive(code=0)
    same(tmp_path, undisturbed(system))
    number("killed five times: lines byte-equal, arrays bit-equal", True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kills_at_random_moments(undisturbed, tmp_path, seed, number):
    timing = read_lines(undisturbed("lstm") / "timing.jsonl")
    whole = sum(line["seconds"] for line in timing[1:])  # without compiling the step
    draw = random.Random(seed)
    for _ in range(2):
        driver(tmp_path, "--system", "lstm", "--kill", "seconds", draw.uniform(0, whole), code=KILLED)
    driver(tmp_path, "--system", "lstm")
    same(tmp_path, undisturbed("lstm"))
    number("killed at two random moments: lines byte-equal, arrays bit-equal", True)


# ------------------------------------------------------------------ SIGTERM
@pytest.mark.parametrize("point, at, latest", [("step", 2, 2), ("evaluation", 4, 4), ("before_rename", 6, 10), ("step", 12, 12)])
def test_sigterm_saves_its_step_and_nothing_is_lost(undisturbed, tmp_path, point, at, latest, number):
    """In a step that is not due to be saved, in an evaluation, while step 6 is written, in a step that is due. Each time there
    are two: the second changes nothing."""
    said = driver(tmp_path, "--system", "lstm", "--kill", point, at, "--signals", "SIGTERM", "SIGTERM", code=143)
    step = max(int(name) for name in steps_in(tmp_path) if "tmp" not in name)
    assert at <= step <= latest and said.endswith(f"ptmjax: stopped by SIGTERM, step {step} is saved: the same command goes on\n"), said
    assert not any("tmp" in name for name in steps_in(tmp_path)) and read_lines(tmp_path / "metrics.jsonl")[-1]["step"] == step
    driver(tmp_path, "--system", "lstm")
    same(tmp_path, undisturbed("lstm"))
    number("stopped by SIGTERM: lines byte-equal, arrays bit-equal", True)


def test_sigterm_in_the_last_step_changes_nothing(undisturbed, tmp_path):
    assert "SIGTERM" not in driver(tmp_path, "--system", "lstm", "--kill", "step", STEPS, "--signals", "SIGTERM")
    same(tmp_path, undisturbed("lstm"))


def test_a_damaged_newest_step_costs_its_steps_alone(undisturbed, tmp_path):
    driver(tmp_path, "--system", "lstm", "--kill", "after_rename", 12, code=KILLED)
    manifest = tmp_path / "checkpoints" / "12" / "state" / "manifest.ocdbt"
    manifest.write_bytes(b"")
    said = driver(tmp_path, "--system", "lstm")
    assert f"{tmp_path / 'checkpoints' / '12'} cannot be read and was moved to broken-12-1" in said
    same(tmp_path, undisturbed("lstm"))
    assert steps_in(tmp_path) == ["12", "14", "broken-12-1"]


def test_a_run_with_no_whole_step_stops_and_loses_nothing(undisturbed, tmp_path):
    driver(tmp_path, "--system", "lstm", "--kill", "step", 5, code=KILLED)
    for path in (tmp_path / "checkpoints" / "3").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    said = driver(tmp_path, "--system", "lstm", code=1)
    assert "no checkpoint in" in said and "move that folder away" in said
    assert steps_in(tmp_path) == ["3"] and (tmp_path / "metrics.jsonl").read_bytes() == before
    (tmp_path / "checkpoints").rename(tmp_path / "aside")
    driver(tmp_path, "--system", "lstm")
    same(tmp_path, undisturbed("lstm"))


# ------------------------------------------------------------------ what a resume reads
class Counting(list):
    """Records that count how often they are read."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("walk", [order.Shuffled(203, 1), order.Streams(203, 8, 1)], ids=["shuffled", "streams"])
def test_a_resume_reads_as_much_at_any_step(walk):
    """No record is read to find the place."""
    def reads(begin):
        records = Counting(tiny.RECORDS)
        source = loader.Source(records, walk, tiny.mask, 1, "tiny")
        records.reads = 0
        found = list(loader.batches(source, 8, rows_sharding(tiny.mesh_of(1, 1, 1)), begin, begin + 3))
        assert len(found) == 3
        return records.reads

    assert reads(10) == reads(10**6) == 3 * 8
    assert reads(0) == 3 * 8


# ------------------------------------------------------------------ meshes
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_lines(tmp_path_factory.mktemp("whole"), (1, 1, 1), 10)


def tiny_lines(folder, shape, steps):
    tiny.run([tiny.stage(tiny.lstm, steps, total=10)], folder, shape)
    return read_lines(folder / "metrics.jsonl")


def close(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a["step"] == b["step"] and a.get("set") == b.get("set") and a.get("records") == b.get("records")
        assert a["lm"] == pytest.approx(b["lm"], rel=1e-5)


@pytest.mark.parametrize("before, after", [((2, 2, 2), (8, 1, 1)), ((2, 2, 2), (1, 1, 1)), ((8, 1, 1), (2, 2, 2)), ((1, 1, 1), (2, 2, 2))])
def test_saved_on_one_mesh_and_resumed_on_another(whole, tmp_path, before, after):
    """Carry and dropout on: steps 1 to 5 on one mesh, 6 to 10 on the other, as 1 to 10 on one device."""
    tiny_lines(tmp_path, before, 5)
    assert jax.device_count() == 8
    close([line for line in tiny_lines(tmp_path, after, 10) if not ("set" in line and line["step"] == 5)], whole)
