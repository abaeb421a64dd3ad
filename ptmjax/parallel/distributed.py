"""Starting a run of several processes, and what they agree on. They do so in jax's store of the run, between hosts: a collective
of devices would compile, and one of CPUs gives up where another process comes 30 seconds late."""
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import jax

from ptmjax.parallel import rollcall
from ptmjax.parallel.rollcall import telling
from ptmjax.types import Late, UserError

HEARTBEAT = 30  # seconds without a sign of life after which a process is lost and ends the others, whatever they wait for
PATIENCE = rollcall.PATIENCE
LIMIT = 7200  # seconds in which all come to a place where all must be; process 0, while it lives, may take longer over what it does alone
ROOM = "ptmjax"  # where in the store
_turns = itertools.count()  # of agreements, the same on all processes
_passed = [0]  # the turns before which all have read all


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None, auto: bool = False) -> None:
    """Joins the processes of a run: by address (host:port), count and own number, or `auto` where the cluster tells (TPU pod,
    SLURM, GKE). With neither, one process. Must come before anything asks for devices."""
    given = [x is not None for x in (coordinator, processes, process)]
    if any(given) and not all(given):
        raise UserError("several processes need all three of --coordinator=HOST:PORT, --processes=N and --process=I")
    if any(given) and not ((found := re.fullmatch(r".+:(\d{1,5})", coordinator)) and 0 < int(found[1]) < 2**16):
        raise UserError(f"--coordinator={coordinator} is not HOST:PORT, of a port from 1 to 65535: give the address of process 0, such as "
                        "10.0.0.1:8476")
    if any(given) and not 0 <= process < processes:
        raise UserError(f"--process={process} is not in 0 .. {processes - 1} of --processes={processes}")
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is interrupt's; jax's two sides may name different steps
    if any(given):
        if processes > 1:
            rollcall.hold(coordinator, processes, process)
        jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)
    elif auto:
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError as e:
            raise UserError("--distributed: no cluster tells of its processes here: leave it out on one machine, or name "
                            "them by --coordinator, --processes and --process") from e


def store():
    """jax's keys and barriers, which its own checkpoints use too and which are private in 0.10."""
    from jax._src import distributed

    return distributed.global_state.client


def patient(at: Any, key: str) -> str:
    """What lies under the key, however long that takes; a JaxRuntimeError where the run is over."""
    while True:
        try:
            return at.blocking_key_value_get(key, PATIENCE * 1000)  # Ctrl-C is heard between two of these
        except jax.errors.JaxRuntimeError as e:
            if "GetKeyValue() timed out" not in str(e):
                raise


def gathered(value: int, what: str = "going on") -> list[int]:
    """The value of every process, on all of them. One that is at another place than `what` is a UserError that names it, one that does
    not come within LIMIT seconds a Late."""
    n, me = jax.process_count(), jax.process_index()
    if n == 1:
        return [value]
    turn, at = next(_turns), store()
    at.key_value_set(f"{ROOM}/{turn}/{me}", told("all", what, value))
    there = lambda: {int(name): said for key, said in at.key_value_dir_get(f"{ROOM}/{turn}/") if (name := key.rpartition("/")[2]) != "all"}
    lack = lambda: rollcall.names(set(range(n)) - set(there()), n)
    with telling(lambda: f"process {me} waits at {what} for {lack()}"):
        try:
            at.wait_at_barrier(f"{ROOM}/{turn}", LIMIT * 1000)
        except jax.errors.JaxRuntimeError as e:
            if "Barrier timed out" not in str(e):
                raise
            raise Late(f"{what}: {lack()} did not come within {LIMIT} s: see what they say, and start all again") from e
    if me == 0:  # who alone reads all: with a thousand processes it is a thousand values and not a million
        found = there()
        at.key_value_set(f"{ROOM}/{turn}/all", json.dumps([found[i] for i in range(n)]))
        for old in range(_passed[0], turn):  # all are here, so all have read what was before
            at.key_value_delete(f"{ROOM}/{old}/")
        _passed[0] = turn
    said = json.loads(at.blocking_key_value_get(f"{ROOM}/{turn}/all", LIMIT * 1000))
    return [heard("all", what, x, number) for number, x in enumerate(said)]


def told(kind: str, what: str, value: int | str | None) -> str:
    return json.dumps([kind, what, value if isinstance(value, str | None) else int(value)])


def heard(kind: str, what: str, said: str, number: int) -> int | str | None:
    """The value that process `number` told; a UserError where it told of another matter: the processes have gone apart, as they do where
    they see other files."""
    theirs, matter, value = json.loads(said)
    if (theirs, matter) != (kind, what):
        raise UserError(f"process {number} is at {matter!r}, process {jax.process_index()} at {what!r}: let all see the same --workdir, "
                        "text and options, and start them again")
    return value


def everywhere(ok: bool, what: str = "going on") -> bool:
    """Whether ok is true on all processes."""
    return all(gathered(ok, what))


def of_the_first(value: int | str | None, what: str = "going on") -> int | str | None:
    """Process 0's value, on all processes. They wait for it as long as it lives."""
    if jax.process_count() == 1:
        return value
    key, at = f"{ROOM}/{next(_turns)}/0", store()
    if jax.process_index() == 0:
        at.key_value_set(key, told("first", what, value))
        return value
    with telling(lambda: f"process {jax.process_index()} waits for process 0, which is at {what}"):
        return heard("first", what, patient(at, key), 0)


def first_alone(act: Callable[[], object], what: str) -> str:
    """Runs `act` on process 0 while the others wait; its UserError ends all of them. Gives all what it gives, if that is a str, else ""."""
    fault, found = None, None
    if jax.process_index() == 0:
        try:
            found = act()
            found = found if isinstance(found, str) else ""
        except UserError as e:
            fault = e
    if (found := of_the_first(found, what)) is None:
        raise fault or UserError(f"process 0 failed at {what}: it says why")
    return found
