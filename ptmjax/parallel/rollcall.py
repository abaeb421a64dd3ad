"""Before jax joins the processes of a run: process 0 calls the roll at the coordinator's address, so that one that is missing, or
was started with other numbers, is told by name. jax itself waits without a word and then aborts."""
import contextlib
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from ptmjax.types import Late, UserError

LIMIT = 300  # seconds in which all must have come
PATIENCE = 20  # seconds after which one that waits says for whom
FILES = 256  # what else process 0 has open
SPOKEN = b"ptmjax: "  # how all that process 0 says begins: at its address jax may listen already
GO = SPOKEN + b"go\n"
LATE = b"late: "  # behind SPOKEN, where what follows is a Late
Guests = dict[int, socket.socket]


def hold(coordinator: str, processes: int, process: int) -> None:
    """Returns on all processes once all have come; a UserError where one says other numbers, a Late where one does not come within LIMIT
    seconds: it may be slow, dead, or one that was never meant.

    coordinator: "host:port", of process 0; a port that there can be (distributed.start).
    """
    host, _, port = coordinator.rpartition(":")
    if process:
        answer(host.strip("[]"), int(port), f"{process} of {processes}", coordinator)
        return
    guests: Guests = {}
    with listening(int(port), processes, coordinator) as door:
        try:
            call(door, guests, processes, coordinator)
        except UserError as e:
            tell(guests.values(), SPOKEN + LATE * isinstance(e, Late) + f"{e}\n".encode())
            raise
        tell(guests.values(), GO)


@contextlib.contextmanager
def telling(what: Callable[[], str]) -> Iterator[None]:
    """Says what() on the screen once that is waited for longer than PATIENCE."""
    timer = threading.Timer(PATIENCE, lambda: print(f"ptmjax: {what()}", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# ------------------------------------------------------------------ process 0
def listening(port: int, processes: int, coordinator: str) -> socket.socket:
    """The door at which the others knock."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < (needed := processes + FILES):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard))
    try:
        family = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
        door = socket.create_server(("", port), backlog=processes, **family)
    except OSError as e:
        raise UserError(f"--coordinator={coordinator}: process 0 cannot listen there ({e}): name a port of its machine that is free") from e
    door.settimeout(0.2)
    return door


def call(door: socket.socket, guests: Guests, processes: int, coordinator: str) -> None:
    """Fills guests, number -> line, with all the others."""
    begin = time.monotonic()
    with telling(lambda: f"process 0 waits for {names(set(range(processes)) - {0, *guests}, processes)}: start all of them"):
        while missing := absent(guests, processes):
            if time.monotonic() - begin > LIMIT:
                late = names(missing, processes)
                raise Late(f"{late} did not come to --coordinator={coordinator} within {LIMIT} s: start all of them again")
            try:
                admit(door.accept()[0], guests, processes)
            except TimeoutError:
                continue
            except OSError as e:
                raise UserError(f"process 0 cannot hear all {processes} ({e.strerror or e}): raise its limit of open files "
                                "(ulimit -n)") from e


def absent(guests: Guests, processes: int) -> set[int]:
    """Who is missing. Before it is nobody, those who came and left are forgotten."""
    if not (missing := set(range(1, processes)) - set(guests)):
        for number in [number for number, guest in guests.items() if not alive(guest)]:
            guests.pop(number).close()
            missing.add(number)
    return missing


def admit(guest: socket.socket, guests: Guests, processes: int) -> None:
    """Puts who has come among the guests; a UserError where its numbers cannot be, nothing where it does not speak so."""
    guest.settimeout(2)
    try:
        number, of = map(int, guest.makefile("rb").readline(64).split(b" of "))
    except (OSError, ValueError):
        guest.close()
        return
    twice = number in guests and alive(guests[number])
    if of == processes and not twice:
        guests[number] = guest
        return
    guests[-1] = guest  # hears of it too
    if twice:
        raise UserError(f"two processes were started with --process={number}: give each a number of its own")
    raise UserError(f"process {number} was started with --processes={of}, process 0 with --processes={processes}: give all the same")


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


def tell(guests: Iterable[socket.socket], said: bytes) -> None:
    """Says it to all that still wait."""
    for guest in guests:
        with guest, contextlib.suppress(OSError):
            guest.sendall(said)


# ------------------------------------------------------------------ the others
def answer(host: str, port: int, me: str, coordinator: str) -> None:
    """Says its number until process 0 hears it, and waits for the word to go."""
    begin, fault = time.monotonic(), None
    with telling(lambda: f"process {me} waits for process 0 at --coordinator={coordinator} ({fault or 'it says nothing yet'})"):
        while time.monotonic() - begin < LIMIT:
            try:
                with socket.create_connection((host, port), timeout=PATIENCE) as line:
                    fault = None
                    line.sendall(f"{me}\n".encode())
                    said = word(line)
            except OSError as e:
                said, fault = b"", e
            if said == GO:
                return
            if said.startswith(SPOKEN) and said.endswith(b"\n"):
                what = said.removeprefix(SPOKEN)
                raise (Late if what.startswith(LATE) else UserError)(what.removeprefix(LATE).decode(errors="replace").strip())
            time.sleep(0.2)
    kind = Late if may_be_late(fault) else UserError
    raise kind(f"--coordinator={coordinator}: process 0 does not answer there ({fault or 'something else does'}): start it, or mend the "
               "address")


def may_be_late(fault: Exception | None) -> bool:
    """Whether nothing is known to be wrong with an address: its host may be slow or dead. It is where no host has that name, and where
    something else answers."""
    if isinstance(fault, socket.gaierror):
        return fault.errno == socket.EAI_AGAIN
    return isinstance(fault, OSError)


def word(line: socket.socket) -> bytes:
    """The line that is said there, or what of it came within LIMIT seconds."""
    end, said = time.monotonic() + LIMIT + PATIENCE, b""
    line.settimeout(PATIENCE)
    while not said.endswith(b"\n") and time.monotonic() < end:
        try:
            part = line.recv(1000)
        except TimeoutError:
            continue
        if not part:
            break
        said += part
    return said
