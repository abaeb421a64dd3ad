"""What processes agree on, and the roll that is called before they join. tests/test_processes.py does it with jax in two of them."""
import ast
import contextlib
import errno
import json
import socket
import threading
import time
from pathlib import Path

import jax
import pytest

from ptmjax.parallel import distributed, rollcall
from ptmjax.types import Late, UserError
from tests.drivers.processes import address


def test_alone():
    assert distributed.gathered(7) == [7] and distributed.of_the_first(3) == 3
    assert distributed.everywhere(True) is True and distributed.everywhere(False) is False


class Store:
    """jax's, of one process of several: what the others have set lies in it from the start."""

    def __init__(self, there):
        self.there, self.gets = {f"ptmjax/{key}": value for key, value in there.items()}, 0

    def key_value_set(self, key, value):
        assert key not in self.there
        self.there[key] = value

    def key_value_dir_get(self, at):
        return [(key, value) for key, value in self.there.items() if key.startswith(at)]

    def key_value_delete(self, at):
        self.there = {key: value for key, value in self.there.items() if not key.startswith(at)}

    def blocking_key_value_get(self, key, limit):
        self.gets += 1
        if self.gets < 3:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.there[key]

    def wait_at_barrier(self, name, limit):
        if len(self.key_value_dir_get(f"{name}/")) < jax.process_count():
            time.sleep(0.2)
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: Barrier timed out. Id: {name}::0.")


@pytest.fixture
def among(monkeypatch):
    """(number, of how many, what is in the store) -> the store, of a process at its first agreement."""
    def make(number: int, of: int, there: dict[str, str]) -> Store:
        store = Store(there)
        monkeypatch.setattr(distributed, "store", lambda: store)
        monkeypatch.setattr(distributed, "_turns", iter(range(100)))
        monkeypatch.setattr(distributed, "_passed", [0])
        monkeypatch.setattr(distributed, "PATIENCE", 0.05)
        monkeypatch.setattr(rollcall, "PATIENCE", 0.05)
        monkeypatch.setattr(jax, "process_count", lambda: of)
        monkeypatch.setattr(jax, "process_index", lambda: number)
        return store

    return make


ALL, FIRST = (lambda value, what="going on", kind=kind: distributed.told(kind, what, value) for kind in ("all", "first"))


def test_all_tell_and_what_all_have_read_is_forgotten(among):
    store = among(0, 2, {"1/1": ALL(0), "2/1": ALL(1)})
    store.gets = 9
    assert distributed.of_the_first(4) == 4 and distributed.everywhere(True) is False
    assert set(store.there) == {"ptmjax/1/0", "ptmjax/1/1", "ptmjax/1/all", "ptmjax/2/1"}  # who reads late still finds the last
    assert distributed.gathered(5) == [5, 1] and set(store.there) == {"ptmjax/2/0", "ptmjax/2/1", "ptmjax/2/all"}


def test_another_process_reads_what_the_first_has_put_together(among):
    store = among(1, 2, {"0/0": ALL(7), "0/all": json.dumps([ALL(7), ALL(3)])})
    store.gets = 9
    assert distributed.gathered(3) == [7, 3] and store.there["ptmjax/0/1"] == ALL(3)


def test_one_that_does_not_come_is_named(among, capsys):
    among(1, 4, {"0/0": ALL(1, "saving step 6")})
    with pytest.raises(Late, match=r"saving step 6: process 2, 3 of 0 to 3 did not come within 7200 s: see what they say"):
        distributed.gathered(1, "saving step 6")
    assert capsys.readouterr().err == "ptmjax: process 1 waits at saving step 6 for process 2, 3 of 0 to 3\n"


def test_process_0_is_waited_for_while_it_lives(among):
    """A text takes hours: what ends the wait is its fault, or its end."""
    store = among(1, 2, {"0/0": FIRST("a-folder", "the data"), "1/0": FIRST(None, "the data")})
    assert distributed.first_alone(lambda: 1 / 0, "the data") == "a-folder" and store.gets == 3
    with pytest.raises(UserError, match="process 0 failed at the data: it says why"):
        distributed.first_alone(lambda: 1 / 0, "the data")
    among(0, 2, {})
    with pytest.raises(UserError, match="^no text"):
        distributed.first_alone(lambda: exec("raise UserError('no text')", {"UserError": UserError}), "the data")


@pytest.mark.parametrize("theirs", [FIRST(1, "the data"), ALL(1, "a checkpoint")])
def test_the_answer_to_another_question_is_none(among, theirs):
    """Where processes see other files they go apart: neither may take a number of the other's for its own."""
    store = among(1, 2, {"0/0": theirs})
    store.gets = 9
    with pytest.raises(UserError, match="process 0 is at '.*', process 1 at 'a checkpoint': let all see the same --workdir"):
        distributed.of_the_first(1, "a checkpoint")
    store = among(0, 2, {"0/1": theirs})
    store.gets = 9
    with pytest.raises(UserError, match="process 1 is at '.*', process 0 at 'the end': let all see the same --workdir"):
        distributed.gathered(1, "the end")


# ------------------------------------------------------------------ the roll
def at_once(at: str, *members: tuple[int, int]) -> dict[tuple[int, int], str]:
    """What becomes of processes (number, of how many) that come at the same time: "" or the fault, after "late: " where that is a Late."""
    said = {}

    def one(member):
        try:
            rollcall.hold(at, member[1], member[0])
            said[member] = ""
        except UserError as e:
            said[member] = "late: " * isinstance(e, Late) + str(e)

    threads = [threading.Thread(target=one, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return said


def test_all_go_once_all_are_there():
    assert at_once(address(), (2, 3), (0, 3), (1, 3)) == {(0, 3): "", (1, 3): "", (2, 3): ""}


def test_other_numbers_of_processes(monkeypatch):
    told = "process 1 was started with --processes=4, process 0 with --processes=2: give all the same"
    assert at_once(address(), (0, 2), (1, 4)) == {(0, 2): told, (1, 4): told}


def test_one_number_given_twice():
    at = address()
    first = threading.Thread(target=at_once, args=(at, (1, 3)))
    first.start()
    said = at_once(at, (0, 3), (1, 3))
    first.join(30)
    assert set(said.values()) == {"two processes were started with --process=1: give each a number of its own"}


def test_who_is_missing_is_told_then_named_to_all(monkeypatch, capsys):
    monkeypatch.setattr(rollcall, "LIMIT", 1.5)
    monkeypatch.setattr(rollcall, "PATIENCE", 0.5)
    at = address()
    said = at_once(at, (0, 4), (2, 4))
    assert said == dict.fromkeys([(0, 4), (2, 4)], f"late: process 1, 3 of 0 to 3 did not come to --coordinator={at} within 1.5 s: start all of them again")
    assert "ptmjax: process 0 waits for process 1, 3 of 0 to 3: start all of them\n" in capsys.readouterr().err


def test_process_0_that_may_open_no_more_files(monkeypatch):
    class Full:
        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(UserError, match=r"process 0 cannot hear all 2000 \(Too many open files\): raise its limit of open files \(ulimit -n\)"):
        rollcall.call(Full(), {}, 2000, "here:1")
    asked = []
    monkeypatch.setattr(rollcall.resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(rollcall.resource, "setrlimit", lambda which, limits: asked.append(limits))
    for processes in (2, 2000, 9000):
        rollcall.listening(0, processes, "here:0").close()
    assert asked == [(2256, 4096), (4096, 4096)]


def test_process_0_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(rollcall, "LIMIT", 1)
    monkeypatch.setattr(rollcall, "PATIENCE", 0.3)
    with pytest.raises(Late, match=r"--coordinator=localhost:1: process 0 does not answer there \(.*refused\): start it, or mend the address"):
        rollcall.hold("localhost:1", 2, 1)
    assert "ptmjax: process 1 of 2 waits for process 0 at --coordinator=localhost:1 (" in capsys.readouterr().err


def test_one_that_listens_and_says_nothing_is_told(monkeypatch, capsys):
    monkeypatch.setattr(rollcall, "LIMIT", 0.5)
    monkeypatch.setattr(rollcall, "PATIENCE", 0.2)
    with socket.create_server(("localhost", 0)) as other:
        at = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(UserError, match="process 0 does not answer there .something else does.: start it, or mend the address") as e:
            rollcall.hold(at, 2, 1)
    assert not isinstance(e.value, Late)
    assert f"ptmjax: process 1 of 2 waits for process 0 at --coordinator={at} (it says nothing yet)\n" in capsys.readouterr().err


@pytest.mark.parametrize("fault, late", [
    (ConnectionRefusedError(111, "refused"), True), (TimeoutError("timed out"), True), (OSError(errno.EHOSTUNREACH, "no route"), True),
    (socket.gaierror(socket.EAI_AGAIN, "for now no answer"), True), (socket.gaierror(socket.EAI_NONAME, "no such name"), False), (None, False)])
def test_an_address_is_wrong_only_where_that_is_known(monkeypatch, fault, late):
    """A launcher starts all again where a host is slow or dead, and never where its user must mend the address."""
    class Line(contextlib.nullcontext):
        sendall = recv = lambda self, x: b""

    def connect(*_, **__):
        if fault is not None:
            raise fault
        return Line()

    Line.__enter__ = lambda self: self
    Line.settimeout = lambda self, x: None
    monkeypatch.setattr(rollcall.socket, "create_connection", connect)
    monkeypatch.setattr(rollcall, "LIMIT", 0.1)
    with pytest.raises(UserError, match="process 0 does not answer there") as e:
        rollcall.hold("host:1", 2, 1)
    assert isinstance(e.value, Late) == late


def test_an_address_that_is_taken():
    with socket.create_server(("", 0)) as other:
        at = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(UserError, match="process 0 cannot listen there .*: name a port of its machine that is free"):
            rollcall.hold(at, 2, 0)


def test_who_speaks_otherwise_is_not_counted_and_who_left_may_come_again():
    at, result = address(), []
    called = threading.Thread(target=lambda: result.append(at_once(at, (0, 3))))
    called.start()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"1 of 3\n", b""):
        with knock(at) as line:
            line.sendall(said)
    assert at_once(at, (1, 3), (2, 3)) == {(1, 3): "", (2, 3): ""}
    called.join(30)
    assert result == [{(0, 3): ""}]


def test_one_that_left_is_not_counted_as_the_last(monkeypatch):
    """It came and ended while another was awaited: all would go but the one that comes in its place."""
    at = address()
    with rollcall.listening(int(at.split(":")[1]), 3, at) as door:
        knock(at).close()
        with knock(at) as first:
            first.sendall(b"1 of 3\n")
        second = knock(at)
        second.sendall(b"2 of 3\n")
        monkeypatch.setattr(rollcall, "LIMIT", 1)
        with second, pytest.raises(Late, match="process 1 of 0 to 2 did not come"):
            rollcall.call(door, {}, 3, at)


def knock(at: str) -> socket.socket:
    """A line to who listens at `at`, once that is there."""
    for _ in range(100):
        try:
            return socket.create_connection(at.split(":"))
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nobody listens at {at}")


# ------------------------------------------------------------------ what all must do, no process does alone
TOGETHER = {"gathered", "everywhere", "of_the_first", "first_alone", "process_allgather", "sync_global_devices", "broadcast_one_to_all",
            "agreed", "ending", "save", "save_async", "restore", "params", "some_params", "wait", "close"}


def guarded(source: str) -> list[str]:
    """What is called under an `if` that asks for the process's number and waits for all processes."""
    tests = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If | ast.IfExp) and "process_index" in ast.dump(node.test)]
    parts = [part for node in tests for side in (node.body, node.orelse) for part in (side if isinstance(side, list) else [side])]
    calls = [node.func for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]
    return [name for f in calls if (name := getattr(f, "attr", getattr(f, "id", ""))) in TOGETHER]


def test_no_process_saves_or_gathers_alone():
    """Pitfall 53: the others would wait for ever."""
    files = sorted((Path(__file__).parents[2] / "ptmjax").rglob("*.py"))
    sources = {p.name: p.read_text(encoding="utf-8") for p in files}
    assert {name: found for name, source in sources.items() if (found := guarded(source))} == {}
    assert sum("process_index" in source for source in sources.values()) > 3


def test_one_that_would_is_seen():
    for source in ("if jax.process_index() == 0:\n    store.save(3, state)", "if process_index() != 0:\n    pass\nelse:\n    with a:\n        gathered(1)",
                   "x = gathered(1) if jax.process_index() else 0"):
        assert guarded(source), source
    assert guarded("if jax.process_index() == 0:\n    print(1)\ngathered(1)") == []
