"""The end that one process asks for. tests/test_processes.py does it with SIGTERM."""
import contextlib
import itertools
import random
import threading
import time

import jax
import pytest

from ptmjax.parallel.ending import End, ending


class Shared:
    """jax's store, as all processes see it."""

    def __init__(self, late=0.0, lost=()):
        self.there, self.change, self.late, self.lost = {}, threading.Condition(), late, lost

    def key_value_set(self, key, value):
        if key in self.lost:
            raise jax.errors.JaxRuntimeError(f"UNAVAILABLE: {key}")
        with self.change:
            if key in self.there:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self.there[key] = value
            self.change.notify_all()
        if key.endswith("asked"):
            time.sleep(self.late)  # as jax's: who waits for it has it before who says it goes on

    def blocking_key_value_get(self, key, limit):
        with self.change:
            self.change.wait_for(lambda: key in self.there)
            return self.there[key]


@pytest.mark.parametrize("seed", range(24))
def test_processes_end_after_one_step_whoever_asks_and_however_far_the_others_are(seed):
    """In a run that is taken up too, whose first step may be the one in which it is asked for. Those who end close, which must not take
    the wish from the others."""
    draw, n = random.Random(seed), 4
    at, first, paces = Shared(late=draw.choice([0, 0.01])), draw.choice([1, 501]), [draw.choice([0, 0.0003, 0.002]) for _ in range(n)]
    ends, who, ask = [End(at, "end", n, i) for i in range(n)], {draw.randrange(n), draw.randrange(n)}, first + draw.choice([0, 0, 3, 29])
    ended, late = [0] * n, time.monotonic() + 20

    def run(i):
        for step in itertools.takewhile(lambda _: time.monotonic() < late, itertools.count(first)):
            time.sleep(paces[i])
            if ends[i].after(step, i in who and step >= ask):
                ended[i] = step
                break
        ends[i].close()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ended)) == 1 and ended[0] >= ask and [end.passed for end in ends] == ended
    assert not any(end.thread.is_alive() for end in ends)


@pytest.mark.parametrize("lost", ["end/asked", "end/passed/1", "end/step"])
def test_a_fault_of_the_store_is_raised_and_not_waited_for(lost):
    at = Shared(lost=[lost])
    ends = [End(at, "end", 2, i) for i in range(2)]
    one = ends[0 if lost == "end/step" else 1]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"UNAVAILABLE: {lost}"):
        for step in range(1, 2000):
            one.after(step, True)
            time.sleep(0.001)
    at.lost = ()
    for key, value in (("end/asked", "over"), ("end/passed/1", "1"), ("end/step", "9")):  # so that nobody waits on
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            at.key_value_set(key, value)
    for end in ends:
        end.close()
    assert not any(end.thread.is_alive() for end in ends)


def test_where_nobody_asks_all_come_to_their_end():
    at = Shared()
    ends = [End(at, "end", 3, i) for i in range(3)]
    assert not any(end.after(step, False) for step in range(1, 9) for end in ends)
    for end in ends:
        end.close()
    assert not any(end.thread.is_alive() for end in ends) and not ends[0].after(9, True)


def test_one_process_asks_itself():
    with ending() as ends:
        assert ends(4, True) and not ends(4, False)
