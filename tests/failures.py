"""What goes wrong, done to a tiny run by `ptmjax train` itself, and what comes of it, as a Markdown table.

python -m tests.failures [OUT.md]
The run has 14 steps, logged at each, saved at 2, 4, ..., evaluated at 3, 6, ...; what happens does so at points of tests/drivers/train.py.
"""
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

from orbax.checkpoint import v1 as ocp  # noqa: E402

from ptmjax.training.metrics import read_lines  # noqa: E402
from tests.drivers.processes import COMMAND, TINY, address, start  # noqa: E402

STEPS = 14
SECONDS = 600  # after which a process is taken for hanging
Point = tuple[str, int, str]  # of drivers/command.py: where, at which step, what is done
NOTHING: Point = ("nothing", 0, "true")


class Done(NamedTuple):
    code: int
    said: str
    seconds: float  # from the moment at which it went wrong, where that is known
    reached: int  # the last step logged before it


class Failure(NamedTuple):
    """One row. `act` does it to a work folder; `mended` is a shell command that is done before the run is continued."""

    what: str
    act: Callable[[Path], Done]
    mended: str = "true"
    processes: int = 1


class Row(NamedTuple):
    what: str
    said: str
    code: int
    lost: int | None  # steps that were done again; None: the run is not continued from there
    same: str
    seconds: float

    def markdown(self) -> str:
        shown = (self.what, self.said or "(nothing)", self.code, "-" if self.lost is None else self.lost, self.same)
        return f"| {' | '.join(str(x).replace('|', '/') for x in shown)} |"


# ------------------------------------------------------------------ runs
def train(folder: Path, *points: Point, words: Sequence[str] = (), of: int = 0, **environment: str) -> Done:
    """`ptmjax train` in `folder`, a process for each point: the code and words of process `of`."""
    where = address()
    marker = folder.parent / f"{folder.name}.moment"
    marker.unlink(missing_ok=True)
    given = ["train", f"--gin_file={TINY}", f"--gin.STEPS={STEPS}", f"--workdir={folder}", f"--cache={folder.parent / 'cache'}", *words]
    join = lambda i: [f"--coordinator={where}", f"--processes={len(points)}", f"--process={i}"] if len(points) > 1 else []
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        started = [start([*COMMAND, point, at, f"touch {marker}; {shell}".replace("WORK", str(folder)), *given, *join(i)])
                   for i, (point, at, shell) in enumerate(points)]
    finally:
        os.environ.clear()
        os.environ.update(before)
    ended = [wait(process) for process in started]
    code, said = ended[of]
    shown = map(int, re.findall(rf"step (\d+)/{STEPS}", said))  # where the lines are gone too
    return Done(code, said, time.time() - marker.stat().st_mtime if marker.exists() else 0.0, logged(folder) or max(shown, default=0))


def logged(folder: Path) -> int:
    """The last step in metrics.jsonl."""
    lines = folder / "metrics.jsonl"
    return max((line["step"] for line in (read_lines(lines) if lines.exists() else [])), default=0)


def wait(process: subprocess.Popen) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return -1, f"ptmjax: still running after {SECONDS} s\n"
    return (process.returncode, said) if process.returncode >= 0 else (128 - process.returncode, said)


def at(point: str, step: int, shell: str) -> Callable[[Path], Done]:
    """A run to which this happens."""
    return lambda folder: train(folder, (point, step, shell))


def of_two(point: str, step: int, shell: str) -> Callable[[Path], Done]:
    """A run of two processes, to the second of which this happens: what the first makes of it."""
    return lambda folder: train(folder, NOTHING, (point, step, shell))


def cut(folder: Path) -> None:
    """A run that was killed in step 13: 10 and 12 are saved."""
    train(folder, ("step", 13, LATE))


def after(shell: str, *words: str, **environment: str) -> Callable[[Path], Done]:
    """Something is done to the folder of a run that was cut, and then it is called again."""
    def act(folder: Path) -> Done:
        cut(folder)
        reached = logged(folder)
        subprocess.run(shell.replace("WORK", str(folder)), shell=True, check=True)
        return train(folder, NOTHING, words=words, **environment)._replace(reached=reached)

    return act


def second(folder: Path) -> Done:
    """A call while another trains there."""
    first = start([*COMMAND, "step", 5, f"touch {folder}.there; sleep 40", "train", f"--gin_file={TINY}", f"--gin.STEPS={STEPS}",
                   f"--workdir={folder}", f"--cache={folder.parent / 'cache'}"])
    while first.poll() is None and not Path(f"{folder}.there").exists():
        time.sleep(0.1)
    done = train(folder, NOTHING)
    wait(first)
    return done


# ------------------------------------------------------------------ what goes wrong
KILL, TERM, INT = (f"kill -{name} $PPID" for name in ("KILL", "TERM", "INT"))
LATE = f"sleep 2; {KILL}"  # once the save before is whole, as it is where steps are longer
ROOT = os.geteuid() == 0  # who can mount a small disk
FULL = Failure("the disk is full (step 5)", lambda folder: on_disk(folder, "sleep 2; cat /dev/zero > WORK/checkpoints/fill 2> /dev/null; true"),
               "rm -f WORK/checkpoints/fill")
READ_ONLY = (Failure("the checkpoints' folder becomes read-only (step 5)",
                     at("step", 5, "sleep 2; cd WORK && mount --bind checkpoints checkpoints && mount -o remount,ro,bind checkpoints"),
                     "umount -l WORK/checkpoints") if ROOT else
             Failure("the checkpoints' folder becomes read-only (step 5)", at("step", 5, "sleep 2; chmod 500 WORK/checkpoints"),
                     "chmod 700 WORK/checkpoints"))


def on_disk(folder: Path, shell: str) -> Done:
    """A run that has a disk of 16 MB to itself."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)
    return train(folder, ("step", 5, shell))


FAILURES = [
    Failure("kill -9 in step 5", at("step", 5, LATE)),
    Failure("kill -9 while step 6 is saved", at("before_rename", 6, KILL)),
    Failure("kill -9 in the evaluation at step 6", at("evaluation", 6, LATE)),
    Failure("kill -9 while a line is written (step 7)", at("line", 7, LATE)),
    Failure("SIGTERM in step 5", at("step", 5, TERM)),
    Failure("SIGTERM while step 6 is saved", at("before_rename", 6, TERM)),
    Failure("SIGTERM in the evaluation at step 6", at("evaluation", 6, TERM)),
    Failure("SIGTERM in the last step", at("step", STEPS, TERM)),
    Failure("Ctrl-C in step 5", at("step", 5, INT)),
    *([FULL] if ROOT else []),
    READ_ONLY,
    Failure("the checkpoints are deleted (step 5)", at("step", 5, "sleep 2; rm -r WORK/checkpoints")),
    Failure("the work folder is deleted (step 5)", at("step", 5, "sleep 2; rm -r WORK")),
    Failure("a file of the newest checkpoint is emptied", after("for f in $(find WORK/checkpoints/12 -path '*/d/*'); do : > $f; done")),
    Failure("one bit of the newest checkpoint is flipped", after(
        f"{sys.executable} -c 'import pathlib, sys; p = max(pathlib.Path(sys.argv[1]).rglob(\"d/*\"), key=lambda p: p.stat().st_size); "
        "b = bytearray(p.read_bytes()); b[len(b) // 2] ^= 1; p.write_bytes(b)' WORK/checkpoints/12")),
    Failure("all checkpoints are emptied", after(
        "find WORK/checkpoints -type f | while read f; do : > $f; done"), "mv WORK/checkpoints WORK/aside"),
    Failure("metrics.jsonl is deleted", after("rm WORK/metrics.jsonl")),
    Failure("another text under the same name", after("true", TINY_TEXT="1")),
    Failure("another setting (the seed)", after("true", "--gin.Experiment.seed=3")),
    Failure("fewer steps than are done", after("true", "--gin.STEPS=8")),
    Failure("a second `ptmjax train` in the folder", second),
    Failure("one of two processes: kill -9 in step 5", of_two("step", 5, LATE), processes=2),
    Failure("one of two processes: kill -9 while step 6 is saved", of_two("save", 6, KILL), processes=2),
    Failure("one of two processes: a fault of its own (step 5)", of_two("step", 5, "false"), processes=2),
    Failure("the first of two processes: kill -9 in step 5", lambda folder: train(folder, ("step", 5, LATE), NOTHING, of=1), processes=2),
    Failure("one of two processes: SIGTERM in step 5", of_two("step", 5, f"{TERM}; sleep 3"), processes=2),
]


# ------------------------------------------------------------------ the table
def last_of(folder: Path) -> tuple[bytes, dict] | None:
    """What a whole run leaves: its lines, and the check sums of its last state; None where it is not whole."""
    step = folder / "checkpoints" / str(STEPS)
    return ((folder / "metrics.jsonl").read_bytes(), ocp.metadata(step).custom_metadata["sums"]) if step.is_dir() else None


def row(failure: Failure, folder: Path, undisturbed: tuple[bytes, dict]) -> Row:
    """Does it, continues the run, and compares that with an undisturbed one of as many processes."""
    done = failure.act(folder)
    subprocess.run(failure.mended.replace("WORK", str(folder)), shell=True, check=True)
    goes_on = train(folder, *[NOTHING] * failure.processes)
    whole = done.code == 0 or "the run is complete" in goes_on.said
    begun = re.search(r"going on from step (\d+)", done.said if done.code == 0 else goes_on.said)
    told = [line for line in done.said.splitlines() if re.match("ptmjax: |checkpoint |.*is gone", line)]
    said = "; ".join(line.replace(f"{folder}", "runs/x").replace(f"{folder.parent}/", "") for line in told[-2:])
    lost = done.reached - int(begun[1]) if begun else None if whole else done.reached
    found = last_of(folder)
    same = "yes" if found == undisturbed else "but for its lines" if found and found[1] == undisturbed[1] else "NO"
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)
    return Row(failure.what, said, done.code, lost, same, done.seconds)


def table(failures: Sequence[Failure], root: Path, tell: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Their rows; `tell` hears each as it is known."""
    @functools.cache
    def undisturbed(processes: int) -> tuple[bytes, dict]:
        folder = root / f"undisturbed-{processes}"
        done = train(folder, *[NOTHING] * processes)
        assert done.code == 0, done.said
        return last_of(folder)

    rows = []
    for number, failure in enumerate(failures):
        wanted = undisturbed(failure.processes)
        rows.append(row(failure, root / f"run-{number}", wanted))
        tell(f"{rows[-1].markdown()} {rows[-1].seconds:.1f} s")
    return rows


HEAD = "| what was done | what it said | exit code | steps lost | the continued run equals the undisturbed one |\n|---|---|---|---|---|"


def main(out: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/compiled")
        rows = table(FAILURES, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    text = "\n".join([HEAD, *(one.markdown() for one in rows)])
    print(text)
    if out:
        Path(out).write_text(f"{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
