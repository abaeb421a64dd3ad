"""Processes that work for another end with it, however it ends."""
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptmjax.data.masking import Masking
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks
from ptmjax.data.workers import ordered
from ptmjax.types import UserError

BUILD = '''
import os, pickle, sys, time
from ptmjax.data import records
from ptmjax.training import interrupt
real = records.write_shard
def slow(*job):
    os.write(1, b"%d\\n" % os.getpid())  # at once, or the lines of two mix
    time.sleep(120)
    return real(*job)
if __name__ == "__main__":
    records.write_shard = slow
    interrupt.install()
    interrupt.busy()
    try:
        records.build(pickle.load(open(sys.argv[1], "rb")), "train", sys.argv[2], workers=2, progress=False)
    except KeyboardInterrupt:
        interrupt.leave(interrupt.CODE)
'''


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_results_come_in_order_and_a_fault_as_it_is():
    results = ordered(divmod, [(7, 1), (7, 2), (7, 3), (7, 0), (7, 4)], 2)
    assert [next(results) for _ in range(3)] == [(7, 0), (3, 1), (2, 1)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_killed_worker_is_one_line():
    with pytest.raises(UserError, match="a worker process was killed, .*no memory .*: give the task more shards, or the work fewer workers"):
        list(ordered(signal.raise_signal, [(signal.SIGKILL,)] * 3, 2))


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked up in /proc")
@pytest.mark.parametrize("how, code", [("ctrl-c", 130), ("interrupted alone", 130), ("killed", -signal.SIGKILL)])
def test_an_ended_build_leaves_no_process_and_no_cache(tmp_path, english, how, code):
    """A terminal sends Ctrl-C to all processes of a command, a scheduler its signal to the first alone."""
    (tmp_path / "text").write_text("\n\n".join(f"Document {i} of the sea and the whale." for i in range(60)))
    task = Task("sea", str(tmp_path / "text"), english, Blocks(16, minimum=3), Masking(english, 18), holdout=10)
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    (tmp_path / "build.py").write_text(BUILD)
    command = [sys.executable, str(tmp_path / "build.py"), str(tmp_path / "task"), str(tmp_path / "cache")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True) as run:
        workers = [int(run.stdout.readline()) for _ in range(2)]
        begin = time.monotonic()
        send = os.killpg if how == "ctrl-c" else os.kill
        send(run.pid, signal.SIGKILL if how == "killed" else signal.SIGINT)
        assert run.wait(60) == code and (run.stderr.read() == b"" or how == "killed")  # Python's tracker of resources may tell of that
        while not all(map(gone, workers)):
            assert time.monotonic() - begin < 60, "a worker goes on"
            time.sleep(0.1)
    left = [p.name for p in (tmp_path / "cache").iterdir() if p.name != ".digests.json"]
    assert left == [] or how == "killed" and [name.startswith(".part-") for name in left] == [True]
