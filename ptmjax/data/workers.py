"""Work in processes of its own, which end when it ends: with its last result, a fault, Ctrl-C, or a kill of the one that began it."""
import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool

from ptmjax.types import UserError


def ordered(act: Callable, jobs: Iterable[tuple], workers: int) -> Iterator:
    """act(*job) of every job, in their order; at most workers + 1 jobs are held.

    Raises:
        UserError: the system killed a worker.
    """
    spawn = multiprocessing.get_context("spawn")  # forking a process in which jax has threads can hang
    with concurrent.futures.ProcessPoolExecutor(workers, spawn, _end_with_parent) as pool:
        waiting = collections.deque()
        try:
            for job in jobs:
                with _deaf():
                    waiting.append(pool.submit(act, *job))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as e:
            raise UserError("a worker process was killed, as where no memory is left: give the task more shards, or the work fewer "
                            "workers") from e
        except BaseException:  # Ctrl-C above all: nobody waits for what is half done
            for process in list(pool._processes.values()):  # pool.kill_workers() from Python 3.14 on
                process.kill()
            raise


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started inside hears no Ctrl-C: that is for the one that starts it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a worker, which would otherwise wait for ever for the next job of a process that was killed."""
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
