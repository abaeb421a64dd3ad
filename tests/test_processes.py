"""Several processes give the numbers of one, whatever the mesh, and write once."""
import json
import os
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from ptmjax.cli.main import LOST
from ptmjax.data import order
from ptmjax.parallel import distributed
from ptmjax.training.metrics import read_lines
from ptmjax.types import UserError
from tests.drivers import tiny
from tests.drivers.processes import COMMAND, KILLED, ROOT, TINY, TRAIN, address, finish, start, together
from tests.drivers.reads import STEPS as BATCHES


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
    """BERT with dropout: on one process, on two, and begun on one to be ended on two."""
    root = tmp_path_factory.mktemp("runs")
    finish(start([*TRAIN, f"{root}/one:1,1,1", f"{root}/from-one:2,2,2:5"], 8))
    pair([f"{root}/rows:8,1,1", f"{root}/from-one:8,1,1"])
    return root


@pytest.fixture(scope="module")
def others(folders):
    """Also on eight devices of one process, with the model axis across two, and begun on two to be ended on one."""
    pair([f"{folders}/across:1,1,8", f"{folders}/from-two:2,1,4:5"])
    finish(start([*TRAIN, f"{folders}/eight:8,1,1", f"{folders}/from-two:2,2,2"], 8))


@pytest.mark.parametrize("name", ["rows", "from-one", *(pytest.param(name, marks=pytest.mark.slow) for name in ("eight", "across", "from-two"))])
def test_losses_of_ten_steps_and_evaluations(folders, name, number, request):
    """across: the model axis lies across the processes, so both make all rows. The evaluation counts its 21 records once."""
    if name in ("eight", "across", "from-two"):
        request.getfixturevalue("others")
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
    assert len((folders / "rows" / "timing.jsonl").read_text().splitlines()) == 10
    assert len((folders / "rows" / "metrics.jsonl").read_text().splitlines()) == 13


# ------------------------------------------------------------------ what each process reads
MESHES = [(8, 1, 1), (2, 2, 2), (2, 1, 4), (1, 1, 8)]


def reads(processes):
    """[process][mesh] of tests/drivers/reads.py, with eight devices in all."""
    meshes, where = ":".join(",".join(map(str, mesh)) for mesh in MESHES), address()
    join = lambda i: [where, processes, i] if processes > 1 else []
    said = together([["tests/drivers/reads.py", meshes, *join(i)] for i in range(processes)], 8 // processes)
    return [json.loads(text.splitlines()[-1]) for text in said]


@pytest.fixture(scope="module")
def alone():
    return reads(1)[0]


@pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_host_reads_the_rows_that_its_devices_hold_and_no_others(alone, processes):
    """Each once. Together they read all, apart from each other but where the model axis lies across them, and have one process' batches."""
    found = reads(processes) if processes > 1 else [alone]
    devices = 8 // processes
    for number, (data, fsdp, model) in enumerate(MESHES):
        rows = tiny.ROWS // (data * fsdp)  # of a device; devices of one data and fsdp stand side by side
        mine = [{row for d in range(i * devices, (i + 1) * devices) for row in range(d // model * rows, (d // model + 1) * rows)} for i in range(processes)]
        assert set.union(*mine) == set(range(tiny.ROWS)) and (len(mine[0]) * processes == tiny.ROWS or model > devices)
        for part, end, place in (("training", BATCHES * tiny.ROWS, order.Shuffled(len(tiny.RECORDS), 1)), ("evaluation", tiny.HELDOUT, order.Sequential(tiny.HELDOUT))):
            whole = alone[number][part]["batches"]
            assert len(whole) == -(-end // tiny.ROWS)
            for i in range(processes):
                told = found[i][number][part]
                assert [{*map(int, batch)} for batch in told["batches"]] == [mine[i]] * len(whole)
                assert all(batch[row] == of_all[row] for batch, of_all in zip(told["batches"], whole) for row in batch)
                assert sorted(told["read"]) == sorted(place(np.array([p for p in range(end) if p % tiny.ROWS in mine[i]]))[0].tolist())


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


@pytest.mark.slow
def test_what_process_0_does_alone_may_take_longer_than_a_collective_waits():
    """A collective of CPU devices that nothing preceded gives up after 30 s; then all agree, and compute together."""
    code = """
import sys, time, jax, jax.numpy as jnp
from jax.experimental import multihost_utils
from ptmjax.parallel import distributed
distributed.start(sys.argv[1], 2, int(sys.argv[2]))
distributed.first_alone(lambda: time.sleep(40), "the data")
print(distributed.gathered(int(sys.argv[2]) + 5), int(multihost_utils.process_allgather(jnp.ones(1)).sum()))
"""
    at = address()
    assert [said.splitlines()[-1] for said in together([["-c", code, at, i] for i in range(2)], 1)] == ["[5, 6] 2"] * 2


# ------------------------------------------------------------------ a process that is lost, and the launcher
@pytest.mark.slow
@pytest.mark.parametrize("point, at, end, code", [("step", 4, "kill -9 $PPID", KILLED), ("save", 4, "kill -9 $PPID", KILLED), ("step", 5, "false", 1)])
def test_one_that_is_lost_ends_the_other_in_time(command, tmp_path, point, at, end, code, number):
    """In the collective of a step, in a save that waits for both, or by a fault of its own after a save; what both go on from is whole."""
    words = lambda i: [f"--coordinator={where}", "--processes=2", f"--process={i}"]
    where = address()
    points = [("nothing", 0, "true"), (point, at, f"touch {tmp_path / 'moment'}; {end}")]
    both = [start([*COMMAND, *where_at, *command(tmp_path / "run", *words(i))[2:]]) for i, where_at in enumerate(points)]
    finish(both[1], code)
    said = finish(both[0], LOST, distributed.HEARTBEAT + 30)
    seconds = time.time() - (tmp_path / "moment").stat().st_mtime
    assert "ptmjax: error: another process of this run is gone (" in said and "start all of them again" in said and "Traceback" not in said, said
    number(f"one of two processes ended in a {point} by {end}: seconds until the other has ended", round(seconds, 1))
    assert seconds < distributed.HEARTBEAT + 15
    said = joined(command, tmp_path / "run")
    assert "going on from step 2 of 6" in said[0] or "going on from step 4 of 6" in said[0], said
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "set" not in line] == list(range(1, 7))


@pytest.fixture
def launch(command, tmp_path):
    """(shell command in the second process at its step 3) -> (exit code, what launch/processes.sh and its two processes say)."""
    def call(shell: str) -> tuple[int, str]:
        python = tmp_path / "python"
        late = shlex.join([sys.executable, *COMMAND, "step", "3", shell])
        python.write_text(f'#!/bin/bash\n[[ $* == *--process=1* ]] && exec {late} "${{@:3}}"\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        words = command(tmp_path / "run")[3:]
        environment = os.environ | {"PTMJAX_PYTHON": str(python), "XLA_FLAGS": re.sub(r"(?<=count=)\d+", "1", os.environ["XLA_FLAGS"])}
        done = subprocess.run(["bash", "launch/processes.sh", "2", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    return call


def test_the_launcher_names_the_process_that_died(launch, tmp_path):
    """kill -9 of one ends both with its code; SIGTERM, which goes to both, ends them after a step that is saved; then they go on."""
    begin = time.time()
    code, said = launch("kill -9 $PPID")
    assert code == 137 and "ptmjax: process 1 of 0 to 1 was killed by signal 9 (code 137): the others are ended" in said, said
    code, said = launch("kill -TERM $(ps -o ppid= -p $PPID); sleep 3")
    assert code == 143 and len(re.findall(r"ptmjax: stopped by SIGTERM, step \d is saved: the same command goes on\n", said)) == 2, said
    assert "the others are ended" not in said
    code, said = launch("true")
    assert code == 0 and "going on from step" in said and "curve.png" in said, said
    assert time.time() - begin < 280


@pytest.mark.parametrize("given", [[], ["two"], ["0"], ["99999999999999999999"], ["--grace=9"], ["--", "two"]])
def test_the_launcher_wants_a_number(given):
    done = subprocess.run(["bash", "launch/processes.sh", *given], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "the options end with how many processes" in done.stderr


@pytest.mark.parametrize("given, words", [
    (("localhost:1", 2, None), "all three"),
    ((None, 2, 1), "all three"),
    (("localhost:1", 2, 2), "--process=2 is not in 0 .. 1"),
    (("localhost:1", 2, -1), "--process=-1 is not in"),
    (("localhost", 2, 0), "is not HOST:PORT"),
    ((":80", 2, 0), "is not HOST:PORT"),
    (("host:port", 2, 0), "is not HOST:PORT"),
    *((("host:" + port, n, 0), f"--coordinator=host:{port} is not HOST:PORT, of a port from 1 to 65535") for port in ("0", "65536", "70000", "9" * 30) for n in (1, 2)),
])
def test_an_address_that_cannot_be_right_is_refused_before_anything_waits(given, words):
    with pytest.raises(UserError, match=words):
        distributed.start(*given)
