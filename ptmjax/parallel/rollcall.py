"""Before jax joins the processes of a run: process 0 calls the roll at the coordinator's address, so that one that is missing, or
was started with other numbers, is told by name. jax itself waits without a word and then aborts."""
import socket
import sys
import time
from collections.abc import Iterable

from ptmjax.types import UserError

LIMIT = 300  # seconds in which all must have come
PATIENCE = 20  # seconds after which one that waits says for whom
SPOKEN = b"ptmjax: "  # how all that process 0 says begins: at its address jax may listen already
GO = SPOKEN + b"go\n"


def hold(coordinator: str, processes: int, process: int) -> None:
    """Returns on all processes once all have come; a UserError where one does not within LIMIT seconds, or says other numbers.

    coordinator: "host:port", of process 0.
    """
    host, _, port = coordinator.rpartition(":")
    if process:
        answer(host.strip("[]"), int(port), f"{process} of {processes}", coordinator)
    else:
        call(int(port), processes, coordinator)


def call(port: int, processes: int, coordinator: str) -> None:
    """Process 0: lets the others go once each has said its number."""
    end, told, there = time.monotonic() + LIMIT, time.monotonic() + PATIENCE, {}
    try:
        family = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
        door = socket.create_server(("", port), **family)
    except (OSError, OverflowError) as e:
        raise UserError(f"--coordinator={coordinator}: process 0 cannot listen there ({e}): name a port of its machine that is free") from e
    with door:
        door.settimeout(0.2)
        while missing := sorted(set(range(1, processes)) - set(there)):
            if time.monotonic() > end:
                fault = f"{names(missing, processes)} did not come to --coordinator={coordinator} within {LIMIT} s: start all of them again"
                refuse(there.values(), fault)
                raise UserError(fault)
            if time.monotonic() > told:
                told = end
                print(f"ptmjax: process 0 waits for {names(missing, processes)}: start all of them", file=sys.stderr, flush=True)
            try:
                guest = door.accept()[0]
            except TimeoutError:
                there = {number: guest for number, guest in there.items() if alive(guest)}
                continue
            if (said := heard(guest)) is None:
                continue
            number, of = said
            if fault := wrong(number, of, processes, there):
                refuse([*there.values(), guest], fault)
                raise UserError(fault)
            there[number] = guest
        for guest in there.values():
            guest.sendall(GO)
            guest.close()


def names(missing: Iterable[int], processes: int) -> str:
    return f"process {', '.join(map(str, sorted(missing)))} of 0 to {processes - 1}"


def alive(guest: socket.socket) -> bool:
    """Whether it still waits: one that ended has closed its end."""
    guest.setblocking(False)
    try:
        return guest.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        guest.setblocking(True)


def heard(guest: socket.socket) -> tuple[int, int] | None:
    """(number, of how many) that it says; None for who does not speak so."""
    guest.settimeout(2)
    try:
        number, of = guest.makefile("rb").readline(64).split(b" of ")
        return int(number), int(of)
    except (OSError, ValueError):
        guest.close()
        return None


def wrong(number: int, of: int, processes: int, there: dict[int, socket.socket]) -> str | None:
    if of != processes:
        return f"process {number} was started with --processes={of}, process 0 with --processes={processes}: give all the same"
    if number in there and alive(there[number]):
        return f"two processes were started with --process={number}: give each a number of its own"
    return None


def refuse(guests: Iterable[socket.socket], why: str) -> None:
    for guest in guests:
        try:
            guest.sendall(SPOKEN + f"{why}\n".encode())
            guest.close()
        except OSError:
            pass


def answer(host: str, port: int, me: str, coordinator: str) -> None:
    """Another process: says its number until process 0 hears it, and waits for the word to go."""
    begin, told, fault = time.monotonic(), False, None
    while time.monotonic() < begin + LIMIT:
        if not told and time.monotonic() > begin + PATIENCE:
            told = True
            print(f"ptmjax: process {me} waits for process 0 at --coordinator={coordinator} ({fault})", file=sys.stderr, flush=True)
        try:
            with socket.create_connection((host, port), timeout=PATIENCE) as line:
                line.sendall(f"{me}\n".encode())
                line.settimeout(LIMIT + PATIENCE)
                said = line.makefile("rb").readline(1000)
        except (OSError, OverflowError) as e:
            said, fault = b"", e
        if said == GO:
            return
        if said.startswith(SPOKEN) and said.endswith(b"\n"):
            raise UserError(said.removeprefix(SPOKEN).decode(errors="replace").strip())
        time.sleep(0.2)
    raise UserError(f"--coordinator={coordinator}: process 0 does not answer there ({fault or 'something else does'}): start it, or mend "
                    "the address")
