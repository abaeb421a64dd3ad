"""One side of the step benchmark in a process of its own, so that neither its memory nor its threads meet the other's.

`python -m tests.bench.worker SIDE SYSTEM THREADS TINY` reads a JSON list a line, [what, argument], and answers each with a JSON line.
"""
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Worker:
    """Starts the process; call(what, argument) -> its answer."""

    def __init__(self, side: str, system: str, threads: int, tiny: bool):
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), str(threads))
        counts["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"  # as the command `ptmjax` has it, for both sides
        env = {**os.environ, **counts, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-m", "tests.bench.worker", side, system, str(threads), str(int(tiny))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)

    def call(self, what: str, argument: str | int = ""):
        try:
            self.process.stdin.write(json.dumps([what, argument]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(f"{' '.join(self.process.args[2:])} ended with code {self.process.wait()} at {what} {argument}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def peak_gib() -> float:
    """The most memory that this process ever held. A parent's counts from before exec, so it must be small: it imports nothing."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def serve(side: str, name: str, threads: str, tiny: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    if side == "ours":
        from tests.bench.ours import Ours as Side
    else:
        from tests.bench.theirs import Theirs as Side
    from tests.bench import systems

    system = systems.SYSTEMS[name]
    made = Side(systems.tiny(system) if int(tiny) else system, int(threads))
    calls = {"about": lambda _: made.about(), "step": made.step, "loss": lambda _: made.loss, "gemm": made.gemm, "peak": lambda _: peak_gib()}
    for line in sys.stdin:
        what, argument = json.loads(line)
        print(json.dumps(calls[what](argument)), file=answers, flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
