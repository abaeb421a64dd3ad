"""Starting a run of several processes, and what they do together."""
import contextlib
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from ptmjax.types import UserError

HEARTBEAT = 30  # seconds without a sign of life after which a process is lost and ends the others, whatever they wait for
JOIN = 300  # seconds in which all must have come
PATIENCE = 20  # seconds after which one that waits says for whom


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None, auto: bool = False,
          trains: bool = True) -> None:
    """Joins the processes of a run: by address (host:port), count and own number, or `auto` where the cluster tells (TPU pod,
    SLURM, GKE). With neither, one process. Must come before anything asks for devices.

    trains: jax takes SIGTERM, for a step on which all agree (loop.stopping); else it ends the process, as by default.
    """
    given = [x is not None for x in (coordinator, processes, process)]
    if any(given) and not all(given):
        raise UserError("several processes need all three of --coordinator=HOST:PORT, --processes=N and --process=I")
    if any(given) and not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"--coordinator={coordinator} is not HOST:PORT: give the address of process 0, such as 10.0.0.1:8476")
    if any(given) and not 0 <= process < processes:
        raise UserError(f"--process={process} is not in 0 .. {processes - 1} of --processes={processes}")
    jax.config.update("jax_enable_preemption_service", trains)
    if any(given):
        with telling(f"process {process} of 0 to {processes - 1} waits for the others to join it by --coordinator={coordinator}"):
            if process:
                await_first(coordinator)
            jax.distributed.initialize(coordinator, processes, process, initialization_timeout=JOIN, heartbeat_timeout_seconds=HEARTBEAT)
    elif auto:
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError as e:
            raise UserError("--distributed: no cluster tells of its processes here: leave it out on one machine, or name "
                            "them by --coordinator, --processes and --process") from e


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Says on the screen what is waited for, where that is longer than PATIENCE: jax itself ends the process without a name."""
    timer = threading.Timer(PATIENCE, lambda: print(f"ptmjax: {what}: start all of them", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def await_first(coordinator: str) -> None:
    """Returns once process 0 answers; a UserError where it does not within JOIN seconds."""
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + JOIN
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
            return
        except (OSError, OverflowError) as e:
            if time.monotonic() > end:
                raise UserError(f"--coordinator={coordinator}: process 0 does not answer there ({e}): start it, or mend the address") from e
        time.sleep(0.2)


@contextlib.contextmanager
def collective() -> Iterator[None]:
    """jax makes a ValueError of a lost process where it answers at once: the JaxRuntimeError that it makes of it elsewhere."""
    try:
        yield
    except ValueError as e:
        raise jax.errors.JaxRuntimeError(str(e)) from e


def gathered(value: int) -> list[int]:
    """The value (int32) of every process, on all of them."""
    if jax.process_count() == 1:
        return [value]
    with collective():
        return multihost_utils.process_allgather(np.array([value], np.int32)).ravel().tolist()


def everywhere(ok: bool) -> bool:
    """Whether ok is true on all processes."""
    return all(gathered(ok))


def of_the_first(value: int) -> int:
    """Process 0's value (int32), on all processes."""
    return gathered(value)[0]


def first_alone(act: Callable[[], object], what: str) -> None:
    """Runs `act` on process 0 while the others wait; its UserError ends all of them."""
    fault = None
    if jax.process_index() == 0:
        try:
            act()
        except UserError as e:
            fault = e
    if not everywhere(fault is None):
        raise fault or UserError(f"process 0 failed at {what}: it says why")
