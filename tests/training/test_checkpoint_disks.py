"""Checkpoints (test_checkpoint.py) whose disk or whose other processes fail."""
import contextlib
import errno
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.training import checkpoint, interrupt
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.types import UserError
from tests.training.test_checkpoint import bits, like, restored, state_of, stored


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    store = Checkpoints(tmp_path / "file" / "checkpoints")
    with pytest.raises(UserError, match="could not be written .*mend the disk"):
        store.save(1, state_of(1))
        store.wait()
    store.close()


@pytest.mark.parametrize("restore", [False, True])
def test_a_folder_that_is_removed_is_told_by_the_next_save(tmp_path, restore):
    """It is not made again, as if nothing had been lost: the new folder would lack what the run stands on."""
    store = Checkpoints(stored(tmp_path / "run", [3]) if restore else tmp_path / "run")
    if restore:
        store.restore(lambda _: like(state_of(3)))
    store.save(6, state_of(6))
    store.wait()
    (tmp_path / "run").rename(tmp_path / "aside")
    with pytest.raises(UserError, match="run is gone, it was removed while the run was under way: put it back and start again"):
        store.save(9, state_of(9))
    store.close()
    (tmp_path / "aside").rename(tmp_path / "run")
    assert bits(restored(tmp_path / "run")[0]) == bits(state_of(6))


def test_a_save_that_waits_for_a_lost_process_is_not_waited_for(tmp_path, monkeypatch):
    gone = jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllReduce failed: Connection closed by peer")
    closed = []
    monkeypatch.setattr(Checkpoints, "close", lambda self: closed.append(self))
    for processes, waits in ((2, False), (1, True)):
        monkeypatch.setattr(jax, "process_count", lambda n=processes: n)
        with pytest.raises(jax.errors.JaxRuntimeError):
            with Checkpoints(tmp_path):
                raise gone
        assert bool(closed) == waits
    with Checkpoints(tmp_path):
        pass
    assert len(closed) == 2


def test_a_step_that_one_process_does_not_see_is_not_damaged(tmp_path, monkeypatch):
    store = Checkpoints(stored(tmp_path, [3]))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(checkpoint, "of_the_first", lambda value, what: 6)
    with pytest.raises(UserError, match="6, which process 0 reads, is not there for process 1: let all see the same --workdir"):
        store.restore(lambda _: like(state_of(3)))
    assert store.steps() == [3]


def test_a_best_step_whose_numbers_cannot_be_read_now_stays(tmp_path, monkeypatch):
    """A disk that fails once must not cost it; once it can be read it is what it was."""
    first = Checkpoints(tmp_path, keep=1, best="validation/loss")
    for step, loss in ((1, 0.1), (2, 0.5)):
        first.save(step, state_of(step), {"validation/loss": loss})
    first.close()
    read, failed = checkpoint.ocp.metadata, []

    def once(path):
        if path.name == "1" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(checkpoint.ocp, "metadata", once)
    store = Checkpoints(tmp_path, keep=1, best="validation/loss")
    store.save(3, state_of(3), {"validation/loss": 0.4})
    store.wait()
    assert failed and store.steps() == [1, 3]
    store.save(4, state_of(4), {"validation/loss": 0.3})
    store.close()
    assert store.steps() == [1, 4]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int8", "uint8", "int32", "bool", "complex64"])
def test_numpys_sums_are_those_of_devices(kind):
    x = np.random.default_rng(0).normal(size=(3, 5, 7)) * 50
    x = (x > 0) if kind == "bool" else x.astype(jnp.dtype(kind))
    assert checkpoint.sums_of({"x": x}) == checkpoint.sums_of({"x": jnp.asarray(x)})
    assert checkpoint.sums_of({"a": x, "b": jnp.asarray(x)}).keys() == {"a", "b"}


class Saving:
    """Stands for Orbax's answer: what comes of each question."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def result(self, timeout):
        if (outcome := self.outcomes.pop(0)) == "writing":
            time.sleep(timeout)
            raise TimeoutError
        if isinstance(outcome, Exception):
            raise outcome


DISK = OSError(errno.ENOSPC, "No space left on device")
GONE = jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out: coordination")


@pytest.mark.parametrize("fault, waits", [(None, True), (interrupt.Stopped(5), True), (UserError("mine alone"), False), (MemoryError(), False)])
def test_a_process_that_ends_by_a_fault_asks_the_others_nothing(tmp_path, monkeypatch, fault, waits):
    """They may be in a step, and not hear of it: both would wait. What it saves has a moment to become whole, as where all end so."""
    store, closed, response = Checkpoints(tmp_path), [], Saving(None)
    store.saving = 3, response
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(Checkpoints, "close", lambda self: closed.append(self))
    with contextlib.suppress(UserError, MemoryError, interrupt.Stopped), store:
        if fault is not None:
            raise fault
    assert bool(closed) == waits == bool(response.outcomes)


@pytest.mark.parametrize("here, there, fault, words", [
    (["writing", "writing", None], [checkpoint.WRITING, checkpoint.WHOLE, checkpoint.WHOLE], None, ""),
    ([None, None], [checkpoint.WRITING, checkpoint.WHOLE], None, ""),
    (["writing"], [checkpoint.FAILED], UserError, "5 could not be written .*process 1 says why"),
    ([DISK], [checkpoint.WRITING], UserError, "5 could not be written .*No space left on device"),
    ([TimeoutError(errno.ETIMEDOUT, "Connection timed out")], [checkpoint.WRITING], UserError, "5 could not be written .*Connection timed out"),
    ([GONE], [checkpoint.WRITING], jax.errors.JaxRuntimeError, "Barrier timed out"),
])
def test_two_processes_tell_each_other_how_a_save_stands(tmp_path, monkeypatch, here, there, fault, words):
    """None waits for one that has failed; a disk that times out is no save that goes on."""
    monkeypatch.setattr(checkpoint, "POLL", 0.01)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(checkpoint, "gathered", lambda value, what: [value, there.pop(0)])
    store, response = Checkpoints(tmp_path), Saving(*here)
    store.saving = 5, response
    if fault is None:
        store.wait()
    else:
        with pytest.raises(fault, match=words):
            store.wait()
    assert not there and not response.outcomes and store.saving is None


def test_a_disk_that_times_out_is_told_by_one_process_too(tmp_path):
    store = Checkpoints(tmp_path)
    store.saving = 5, Saving(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
    with pytest.raises(UserError, match="5 could not be written .*Connection timed out"):
        store.wait()


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_by_the_next_save_and_the_earlier_step_stays(tmp_path, monkeypatch):
    folder = stored(tmp_path, [3, 6])
    store = Checkpoints(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        with pytest.raises(UserError, match="9 could not be written .*No space left on device.*mend the disk") as e:
            store.save(9, state_of(9))
            store.save(12, state_of(12))
        store.close()
    assert "\n" not in str(e.value)
    state, said = restored(folder)
    assert bits(state) == bits(state_of(6)) and all("9" in line for line in said)
    stored(folder, [9])
    assert Checkpoints(folder).steps() == [3, 6, 9]
