"""Starting the drivers beside this file, and ptmjax itself, as processes of their own."""
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = [str(Path(__file__).parent / "train.py")]
COMMAND = [str(Path(__file__).parent / "command.py")]  # POINT AT SHELL, then what `ptmjax` is given
TINY = Path(__file__).parent / "tiny.gin"
KILLED = -signal.SIGKILL


def start(command: Sequence[str], devices: int = 1) -> subprocess.Popen:
    """python COMMAND on so many virtual devices, otherwise in the environment of the tests (conftest.py)."""
    flags = re.sub(r"(?<=device_count=)\d+", str(devices), os.environ["XLA_FLAGS"])
    env = os.environ | {"XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, env=env, **pipes)


def finish(process: subprocess.Popen, code: int = 0, seconds: float = 300) -> str:
    """What it printed; an AssertionError with that where it ends with another code."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        said = f"{process.communicate()[0]}\nstill running after {seconds} s"
    assert process.returncode == code, f"code {process.returncode}, not {code}\n{said}"
    return said


def together(commands: Sequence[Sequence[str]], devices: int, code: int = 0) -> list[str]:
    """Processes that join each other: what each printed."""
    started = [start(command, devices) for command in commands]
    try:
        return [finish(process, code) for process in started]
    finally:
        for process in started:
            process.kill()


def address() -> str:
    """localhost with a port that is free now."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return f"localhost:{s.getsockname()[1]}"
