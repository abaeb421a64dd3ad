"""Ctrl-C that nothing can swallow. Python raises KeyboardInterrupt wherever the main thread is, and where that is a callback
of C code (a hook of the garbage collector, a destructor) the exception is printed and lost.

Installed by the console entry alone (__main__.py); without it, check() does nothing and Ctrl-C is Python's own.
"""
import os
import signal
import sys
import threading
from types import FrameType

CODE = 130  # 128 + SIGINT, as shells have it
AGAIN = 0.1  # seconds after which a swallowed interrupt is raised again
PARTING = 10  # seconds that the processes of a run wait for each other where it fails
_state = {"asked": False, "busy": False}


def install() -> None:
    """From here on Ctrl-C is recorded; a second one ends the process at once."""
    signal.signal(signal.SIGINT, _interrupted)
    sys.unraisablehook = _swallowed


def busy() -> None:
    """Called when a command begins its work. Before that, while modules are imported, an interrupt ends the process: there is
    nothing to close, and half-imported packages make other exceptions of it."""
    _state["busy"] = True


def asked() -> bool:
    """Whether there was an interrupt that has not ended the process yet."""
    return _state["asked"]


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
        except (OSError, ValueError):  # a closed pipe
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
        os.write(2, f"{show}ptmjax: interrupted\n".encode())
        os._exit(CODE)
    _state["asked"] = True
    raise KeyboardInterrupt


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
