"""A long run holds no more at its end than at its beginning."""
import os
import threading
import time
from pathlib import Path

import pytest

from ptmjax.training import loop
from ptmjax.training.loop import Every
from tests.drivers import tiny

STEPS, PERIOD = 2000, 50


class Held:
    """A watcher: what the process holds in the middle between two saves, once the last one is on disk."""

    def __init__(self):
        self.memory, self.threads, self.files = [], [], []

    def trained(self, line, seconds, tokens):
        if line["step"] % PERIOD != PERIOD // 2:
            return
        time.sleep(0.3)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        self.threads.append(threading.active_count())
        self.files.append(len(os.listdir("/proc/self/fd")))

    def evaluated(self, line):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("system", [tiny.lstm, tiny.bert])
def test_memory_threads_and_files_stay(tmp_path, system, number):
    """2000 steps with 40 evaluations and 40 saves."""
    held = Held()
    every = Every(log=5, evaluate=PERIOD, save=PERIOD)
    loop.train([tiny.stage(system, STEPS)], tmp_path, tiny.mesh_of(1, 1, 1), every=every, best="heldout/loss", watch=lambda done: [held])
    warm = len(held.memory) // 4
    before, after = held.memory[warm], max(held.memory[warm:])
    number("MiB resident after a quarter of 2000 steps, and the most from there on", [round(before, 1), round(after, 1)])
    assert len(held.memory) == STEPS // PERIOD and after <= 1.05 * before, held.memory
    for held_open in (held.threads, held.files):  # on a busy machine a save may still be going on; what leaks is there each time
        assert min(held_open[-warm:]) <= min(held_open[warm : 2 * warm]), held_open
