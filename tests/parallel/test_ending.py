"""The end that one process asks for. tests/test_processes.py does it with SIGTERM."""
import itertools
import random
import threading
import time

import jax
import pytest

from ptmjax.parallel.ending import End, ending


class Shared:
    """jax's store, as all processes see it."""

    def __init__(self):
        self.there, self.change = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.change:
            if key in self.there:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self.there[key] = value
            self.change.notify_all()

    def blocking_key_value_get(self, key, limit):
        with self.change:
            self.change.wait_for(lambda: key in self.there)
            return self.there[key]


@pytest.mark.parametrize("seed", range(20))
def test_processes_end_after_one_step_whoever_asks_and_however_far_the_others_are(seed):
    """Those who end close, which must not take the wish from the others."""
    draw, at, n = random.Random(seed), Shared(), 4
    ends, paces, ask = [End(at, "end", n, i) for i in range(n)], [draw.choice([0, 0.0003, 0.002]) for _ in range(n)], draw.randrange(1, 30)
    who = {draw.randrange(n), draw.randrange(n)}
    ended, late = [0] * n, time.monotonic() + 20

    def run(i):
        for step in itertools.takewhile(lambda _: time.monotonic() < late, itertools.count(1)):
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
