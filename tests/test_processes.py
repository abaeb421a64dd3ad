"""Several processes give the numbers of one, whatever the mesh, and write once."""
import re

import pytest
from orbax.checkpoint import v1 as ocp

from ptmjax.parallel import distributed
from ptmjax.training.metrics import read_lines
from ptmjax.types import UserError
from tests.drivers import tiny
from tests.drivers.processes import TINY, TRAIN, address, finish, start, together


def close(found, wanted, loss="loss"):
    what = lambda lines: [(line["step"], line.get("set"), line.get("records")) for line in lines]
    assert what(found) == what(wanted)
    for a, b in zip(found, wanted):
        assert a[loss] == pytest.approx(b[loss], rel=1e-5)


def pair(runs):
    where = address()
    together([[*TRAIN, *runs, "--join", where, 2, i] for i in range(2)], 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """BERT with dropout: on one process, on two, and begun on one kind to be ended on the other."""
    root = tmp_path_factory.mktemp("runs")
    finish(start([*TRAIN, f"{root}/one:1,1,1", f"{root}/eight:8,1,1", f"{root}/from-one:2,2,2:5"], 8))
    pair([f"{root}/rows:8,1,1", f"{root}/from-one:8,1,1", f"{root}/across:1,1,8", f"{root}/from-two:2,1,4:5"])
    finish(start([*TRAIN, f"{root}/from-two:2,2,2"], 8))
    return root


@pytest.mark.parametrize("name", ["eight", "rows", "across", "from-one", "from-two"])
def test_losses_of_ten_steps_and_evaluations(folders, name, number):
    """across: the model axis lies across the processes, so both make all rows. The evaluation counts its 21 records once."""
    lines, wanted = read_lines(folders / name / "metrics.jsonl"), read_lines(folders / "one" / "metrics.jsonl")
    assert [line["step"] for line in wanted if "set" not in line] == list(range(1, 11))
    assert [(line["step"], line["records"]) for line in wanted if "set" in line] == [(step, tiny.HELDOUT) for step in (4, 8, 10)]
    between = [line for line in lines if "set" in line and line["step"] == 5]  # the end of the first part is evaluated
    assert len(between) == name.startswith("from")
    lines = [line for line in lines if line not in between]
    close(lines, wanted)
    number("ten steps and three evaluations: greatest relative difference of loss", max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(lines, wanted)))


def test_only_the_first_process_writes(folders):
    """Two writers would leave every line twice."""
    for name in ("rows", "across"):
        assert len((folders / name / "timing.jsonl").read_text().splitlines()) == 10
        assert len((folders / name / "metrics.jsonl").read_text().splitlines()) == 13


# ------------------------------------------------------------------ SIGTERM
STEPS = 60


def sums(folder):
    """Of every leaf of the last step."""
    return ocp.metadata(folder / "checkpoints" / str(STEPS)).custom_metadata["sums"]


def test_sigterm_for_one_stops_both_at_one_step(tmp_path):
    """The second process alone is told; together they save a step, and what goes on from there is the undisturbed run."""
    def both(folder, *more, code=0):
        where = address()
        words = lambda i: [*TRAIN, f"{tmp_path / folder}:2,1,1", "--system", "lstm", "--total", STEPS, "--join", where, 2, i]
        return together([[*words(0), *(["--pace", 0.1] if more else [])], [*words(1), *more]], 1, code)

    said = both("stopped", "--kill", "step", 5, "--signals", "SIGTERM", code=143)
    found = {re.search(r"ptmjax: stopped by SIGTERM, step (\d+) is saved: the same command goes on\n$", text)[1] for text in said}
    assert len(found) == 1 and 5 <= int(*found) < STEPS and (tmp_path / "stopped" / "checkpoints" / found.pop()).is_dir(), said
    both("stopped")
    both("undisturbed")
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("stopped", "undisturbed")]
    assert lines[0] == lines[1] and sums(tmp_path / "stopped") == sums(tmp_path / "undisturbed")


# ------------------------------------------------------------------ the command
@pytest.fixture(scope="module")
def command(tmp_path_factory):
    given = ["-m", "ptmjax", "train", f"--gin_file={TINY}", f"--cache={tmp_path_factory.mktemp('cache')}"]
    return lambda workdir, *options: [*given, f"--workdir={workdir}", *options]


def joined(command, workdir, *options, code=0):
    where = [f"--coordinator={address()}", "--processes=2"]
    return together([command(workdir, *where, f"--process={i}", *options) for i in range(2)], 4, code)


def test_the_command_on_two_processes(command, tmp_path):
    """The data cache is built once for both; the model axis lies across them."""
    said = joined(command, tmp_path / "two", "--gin.Experiment.mesh='model=8'")
    finish(start(command(tmp_path / "one")))
    two, one = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("two", "one"))
    close(two, one)
    assert [(line["step"], line["records"]) for line in two if "set" in line] == [(3, 21), (6, 21)] and len(two) == 8
    assert "step 6/6" in said[0] and "curve.png" in said[0] and "step" not in said[1], said
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(p.name for p in (tmp_path / "one").iterdir())


@pytest.mark.slow
def test_a_folder_that_is_taken_stops_all_processes(command, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    said = joined(command, tmp_path, code=2)
    assert "holds files that are no ptmjax run" in said[0] and "process 0" in said[1]
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("given, words", [
    (("localhost:1", 2, None), "all three"),
    ((None, 2, 1), "all three"),
    (("localhost:1", 2, 2), "--process=2 is not in 0 .. 1"),
    (("localhost:1", 2, -1), "--process=-1 is not in"),
    (("localhost", 2, 0), "is not HOST:PORT"),
    ((":80", 2, 0), "is not HOST:PORT"),
    (("host:port", 2, 0), "is not HOST:PORT"),
])
def test_an_address_that_cannot_be_right_is_refused_before_anything_waits(given, words):
    with pytest.raises(UserError, match=words):
        distributed.start(*given)
