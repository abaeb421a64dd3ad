"""An end for which one process of a run asks, and on whose step all agree.

Not jax's own (reached_preemption_sync_point): of two processes one was told of step 5 and the other of step 6, and both waited for ever.
"""
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ptmjax.parallel.distributed import ROOM, patient, store
from ptmjax.parallel.rollcall import telling

PARTING = 10  # seconds in which the thread ends where the store is still there
OVER = "over"
_turns = itertools.count()  # of runs in these processes, the same on all


@contextlib.contextmanager
def ending() -> Iterator[Callable[[int, bool], bool]]:
    """Gives what all processes call after every step, with whether this one asks for an end: whether all end after it."""
    n = jax.process_count()
    if n == 1:
        yield lambda step, wanted: wanted
        return
    end = End(store(), f"{ROOM}/end{next(_turns)}", n, jax.process_index())
    try:
        yield end.after
    finally:
        end.close()


class End:
    """The first step that no process has passed when one has asked for an end.

    A thread of each process waits for the wish, holds its main thread back at the next step, says which step that has passed, and hears
    from process 0 the one after the last of all these. So it needs no main thread, and no step costs an agreement.
    """

    def __init__(self, at: Any, room: str, processes: int, process: int):
        self.at, self.room, self.processes, self.process = at, room, processes, process
        self.passed, self.step, self.held = 0, None, threading.Lock()
        self.asked, self.fault = False, None
        self.thread = threading.Thread(target=self.listen, name="ptmjax-end", daemon=True)
        self.thread.start()

    def after(self, step: int, wanted: bool) -> bool:
        """Raises jax's error where the store gave one: the run would end at another step here than elsewhere."""
        if wanted and not self.asked:
            self.ask("")
        with self.held:
            if self.fault is not None:
                raise self.fault
            self.passed = step
            return self.step is not None and step >= self.step  # a run that is taken up has passed nothing before its first step

    def ask(self, what: str) -> None:
        """What the first process to ask says is what all hear."""
        try:
            self.at.key_value_set(f"{self.room}/asked", what)
        except jax.errors.JaxRuntimeError as e:
            if "ALREADY_EXISTS" not in str(e):
                raise
        self.asked = True

    def listen(self) -> None:
        try:
            if patient(self.at, f"{self.room}/asked") == OVER:
                return
            with self.held, telling(lambda: f"process {self.process} waits for all to tell their steps, that they end together"):
                self.at.key_value_set(f"{self.room}/passed/{self.process}", str(self.passed))
                if self.process == 0:
                    passed = [int(patient(self.at, f"{self.room}/passed/{i}")) for i in range(self.processes)]
                    self.at.key_value_set(f"{self.room}/step", str(max(passed) + 1))
                self.step = int(patient(self.at, f"{self.room}/step"))
        except jax.errors.JaxRuntimeError as e:
            self.fault = e

    def close(self) -> None:
        """The thread must not be in jax's code when Python ends."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # there is nobody any more
            self.ask(OVER)
        self.thread.join(PARTING)
