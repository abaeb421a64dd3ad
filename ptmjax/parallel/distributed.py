"""Starting a run of several processes."""
import re
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from ptmjax.types import UserError

HEARTBEAT = 30  # seconds without a sign of life after which a process is lost and ends the others, whatever they wait for

def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None, auto: bool = False) -> None:
    """Joins the processes of a run: by address (host:port), count and own number, or `auto` where the cluster tells (TPU pod,
    SLURM, GKE). With neither, one process. Must come before anything asks for devices."""
    given = [x is not None for x in (coordinator, processes, process)]
    if any(given) and not all(given):
        raise UserError("several processes need all three of --coordinator=HOST:PORT, --processes=N and --process=I")
    if any(given) and not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"--coordinator={coordinator} is not HOST:PORT: give the address of process 0, such as 10.0.0.1:8476")
    if any(given) and not 0 <= process < processes:
        raise UserError(f"--process={process} is not in 0 .. {processes - 1} of --processes={processes}")
    if any(given):
        jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)
    elif auto:
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError as e:
            raise UserError("--distributed: no cluster tells of its processes here: leave it out on one machine, or name "
                            "them by --coordinator, --processes and --process") from e


def everywhere(ok: bool) -> bool:
    """Whether ok is true on all processes."""
    return ok if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array([ok])).all())


def of_the_first(value: int) -> int:
    """Process 0's value (int32), on all processes."""
    return value if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(value)))


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
