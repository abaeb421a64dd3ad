"""Ctrl-C that nothing can swallow, SIGTERM that a run answers with a save, and a terminal that may be closed meanwhile.

Python raises KeyboardInterrupt wherever the main thread is, and where that is a callback of C code (a hook of the garbage
collector, a destructor) the exception is printed and lost.
Installed by the console entry alone (__main__.py); without it, check() does nothing and both signals are Python's own.
"""
import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

CODE = 130  # 128 + SIGINT, as shells have it
TERMINATED = 143  # 128 + SIGTERM
AGAIN = 0.1  # seconds after which a swallowed interrupt is raised again
PARTING = 10  # seconds that the processes of a run wait for each other where it fails
_state = {"asked": False, "busy": False, "installed": False, "terminated": False, "trains": False}


class Stopped(Exception):
    """SIGTERM ended a run before its last step, after a step that is saved."""

    def __init__(self, step: int):
        super().__init__(f"stopped by SIGTERM, step {step} is saved: the same command goes on")


class Terminal(io.FileIO):
    """One that may be closed: what is written then is lost, and does not fail the run that is to be saved (launch/launching.sh)."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            return memoryview(data).nbytes


def install() -> None:
    """From here on Ctrl-C is recorded; a second one ends the process at once. Output may outlive its terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            raw = io.BufferedWriter(Terminal(stream.fileno(), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True))
    signal.signal(signal.SIGINT, _interrupted)
    sys.unraisablehook = _swallowed
    _state["installed"] = True


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Within, SIGTERM ends nothing but is told by terminated(); elsewhere it ends the process at once, as by default."""
    _state["trains"] = True
    if not _state["installed"]:
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    signal.siginterrupt(signal.SIGTERM, False)  # nor does it cut what another thread is writing
    try:
        yield
    finally:  # a second one must not cut the end for which the first one has asked
        signal.signal(signal.SIGTERM, signal.SIG_IGN if terminated() else before)


def terminated() -> bool:
    """Whether there was a SIGTERM within stoppable()."""
    return _state["terminated"]


def busy() -> None:
    """Called when a command begins its work. Before that, while modules are imported, an interrupt ends the process: there is
    nothing to close, and half-imported packages make other exceptions of it."""
    _state["busy"] = True


def asked() -> bool:
    """Whether there was an interrupt that has not ended the process yet."""
    return _state["asked"]


def told() -> str:
    """What is said of a Ctrl-C."""
    return "interrupted" + _state["trains"] * ": the same command goes on from the last checkpoint"


def check() -> None:
    """Raises the interrupt again that something swallowed."""
    if _state["asked"]:
        raise KeyboardInterrupt


def leave(code: int) -> None:
    """Ends the process without what Python does at exit: there it waits for threads of Orbax (minutes, where a save failed) and
    takes XLA down under threads that still run."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # a closed pipe; None where it was closed before
            pass
    jax = sys.modules.get("jax")
    if code != CODE and jax is not None and jax.distributed.is_initialized():  # the others must not take this end for a crash
        parting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        parting.start()
        parting.join(PARTING)
    os._exit(code)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if _state["asked"] or not _state["busy"]:
        show = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
        with contextlib.suppress(OSError):  # its terminal may be gone
            os.write(2, f"{show}ptmjax: interrupted\n".encode())
        os._exit(CODE)
    _state["asked"] = True
    raise KeyboardInterrupt


def _terminated(number: int, frame: FrameType | None) -> None:
    _state["terminated"] = True


def _swallowed(about: "sys.UnraisableHookArgs") -> None:
    if not isinstance(about.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(about)
        return
    timer = threading.Timer(AGAIN, _again)
    timer.daemon = True
    timer.start()


def _again() -> None:
    _state["asked"] = False
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # to the thread that may sleep
