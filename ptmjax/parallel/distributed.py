"""Starting a run of several processes."""
import re

import jax

from ptmjax.types import UserError


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
        jax.distributed.initialize(coordinator, processes, process)
    elif auto:
        jax.distributed.initialize()
