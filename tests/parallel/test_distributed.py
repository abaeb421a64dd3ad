"""What processes do together, where one is lost."""
import ast
from pathlib import Path

import jax
import pytest
from jax.experimental import multihost_utils

from ptmjax.parallel import distributed


def test_alone():
    assert distributed.gathered(7) == [7] and distributed.of_the_first(3) == 3
    assert distributed.everywhere(True) is True and distributed.everywhere(False) is False


@pytest.mark.parametrize("ask", [distributed.everywhere, distributed.of_the_first, distributed.gathered])
@pytest.mark.parametrize("kind", [ValueError, jax.errors.JaxRuntimeError])
def test_a_lost_process_is_one_kind_of_fault(monkeypatch, ask, kind):
    """jax has another one where the gather is dispatched at once, and the command tells of one alone."""
    def gone(x):
        raise kind("UNKNOWN: Gloo AllGather failed: Connection closed by peer [127.0.0.1]:1")

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gone)
    with pytest.raises(jax.errors.JaxRuntimeError, match="closed by peer"):
        ask(1)


# ------------------------------------------------------------------ what all must do, no process does alone
TOGETHER = {"gathered", "everywhere", "of_the_first", "first_alone", "process_allgather", "sync_global_devices", "broadcast_one_to_all",
            "reached_preemption_sync_point", "save", "save_async", "restore", "params", "some_params", "wait", "close"}


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
