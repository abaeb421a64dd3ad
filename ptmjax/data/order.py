"""Orders and randomness by position: what makes the whole state of the data one number, the step.

An order maps positions (an int, or an int64 array of any shape) to (record, epoch, start) of the same shape. n records.
`start` says that the row does not continue the one before it: a carry begins from zeros there.
"""
import dataclasses
import functools
import heapq
import math
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from ptmjax.types import UserError, at_least

ROUNDS = 6
WINDOW = 64  # rows of a mixture that change places among themselves
ONE = 31  # a share is so many bits behind the point: a product with what is left of a position then fits int64
WORD = (1 << 64) - 1


# ------------------------------------------------------------------ randomness of an example
class _Words(ISeedSequence):
    """Hands its two words to Philox as the key; Philox(key=...) would first gather entropy, five times as slow."""

    def __init__(self, seed: int, name: str):
        self.words = np.array([seed & WORD, zlib.crc32(name.encode())], np.uint64)

    def generate_state(self, n_words: int, dtype=np.uint32) -> np.ndarray:
        return self.words


_words = functools.lru_cache(maxsize=1024)(_Words)


def counter(seed: int, task: str, record: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """The generator of one example: a function of its arguments alone, not of batch, order, workers or hosts.

    Philox 4x64 (Salmon et al. 2011) with key (seed, CRC-32 of the task's name) and counter words (draws, stream, record, epoch).
    """
    return np.random.Generator(np.random.Philox(_words(seed, task), counter=[0, stream, record, epoch]))


def static(epoch: int, dupe_factor: int | None) -> int:
    """The epoch whose randomness is used: itself, or with static masks modulo the number of copies that BERT wrote of its data."""
    return epoch if dupe_factor is None else epoch % dupe_factor


def _hash(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014), uint64 to uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _key(seed: int, epoch: np.ndarray) -> np.ndarray:
    return _hash(_hash(np.atleast_1d(np.uint64(seed & WORD))) + epoch.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def permute(index: np.ndarray, key: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """A permutation of 0..n-1 for each key (and n), in O(1) memory and time: int64 index, uint64 key -> int64.

    A Feistel network on the a x b grid of a = ceil(sqrt(n)), b = ceil(n / a) places, whose rounds add in place of xor, with
    cycle walking: a place beyond n is permuted again (Black and Rogaway 2002). There are fewer than a such places.
    """
    n = np.broadcast_to(np.asarray(n, np.int64), index.shape)
    a = np.sqrt(n).astype(np.int64)
    a += (a * a < n).astype(np.int64) - ((a - 1) ** 2 >= n)  # the root of a great n may be rounded to either side
    high, wide = a.astype(np.uint64), (-(-n // a)).astype(np.uint64)
    out, todo = index.astype(np.uint64), np.arange(index.size)
    while todo.size:
        a, b, k = high[todo], wide[todo], key[todo]
        left, right = out[todo] // b, out[todo] % b
        for r in range(ROUNDS):
            k = k + np.uint64(0x9E3779B97F4A7C15)
            if r % 2:
                right = (right + _hash(_hash(left ^ k) + k) % b) % b
            else:
                left = (left + _hash(_hash(right ^ k) + k) % a) % a
        out[todo] = left * b + right
        todo = todo[out[todo] >= n[todo]]
    return out.astype(np.int64)


# ------------------------------------------------------------------ orders
def _like(position, *values):
    """Arrays of position's shape; plain int, int, bool for an int."""
    if np.ndim(position):
        return tuple(v.reshape(np.shape(position)) for v in values)
    return tuple(v.item() for v in values)


def _some(n: int) -> None:
    if n < 1:
        raise UserError("there are no records to read: the split is empty")


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """A fresh permutation of the n records in every epoch."""

    n: int
    seed: int = 0

    def __post_init__(self):
        _some(self.n)

    def __call__(self, position):
        epoch, index = np.divmod(np.atleast_1d(np.asarray(position, np.int64)).ravel(), self.n)
        return _like(position, permute(index, _key(self.seed, epoch), self.n), epoch, np.ones(index.shape, bool))


@dataclasses.dataclass(frozen=True)
class Streams:
    """Row r of every batch of `rows` walks its own run of n // rows records in order, again in every epoch.

    An epoch leaves n % rows records out; which ones is drawn from seed and epoch, so that none is left out for ever.
    """

    n: int
    rows: int
    seed: int = 0

    def __post_init__(self):
        _some(self.n)
        if self.n < self.rows:
            raise UserError(f"{self.n} records are too few for {self.rows} streams: use a smaller batch or more text")

    def __call__(self, position):
        run, left = self.n // self.rows, self.n % self.rows
        step, row = np.divmod(np.atleast_1d(np.asarray(position, np.int64)).ravel(), self.rows)
        epoch, index = np.divmod(step, run)
        shift = (_key(self.seed, epoch) % np.uint64(left + 1)).astype(np.int64)
        return _like(position, shift + row * run + index, epoch, index == 0)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Evaluation of streams: row r of every batch of `rows` walks its own run of ceil(n / rows) records, once.

    The last runs may be shorter, or empty: records from n on are not there, and the rows that would read them hold nothing.
    """

    n: int
    rows: int

    def __post_init__(self):
        _some(self.n)

    def __call__(self, position):
        step, row = np.divmod(np.atleast_1d(np.asarray(position, np.int64)).ravel(), self.rows)
        return _like(position, row * -(-self.n // self.rows) + step, np.zeros_like(step), step == 0)


@dataclasses.dataclass(frozen=True)
class Sequential:
    """Every record once, in order, as of epoch 0: evaluation masks never move."""

    n: int

    def __post_init__(self):
        _some(self.n)

    def __call__(self, position):
        flat = np.atleast_1d(np.asarray(position, np.int64)).ravel()
        return _like(position, flat % self.n, np.zeros_like(flat), np.ones(flat.shape, bool))


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Rows of several tasks at given rates: each task's n records in a fresh permutation in every epoch of that task.

    Records are numbered over all tasks, one task after the other. Which task a position is for: a tree of the tasks (Huffman's, of
    the rates) halves what is left: at a node that gives the share a to its first side, position p is that side's where
    round((p + 1) a) > round(p a), and is its round(p a)-th. So the number of a task's rows before any position is known without
    walking there, and differs from rate * position by at most half a row for two tasks, less than one for three, and less than 1.68
    for any number: a node adds half a row, of which its descendants take over their share, and in such a tree the weights on the way
    from a leaf up grow at least as the Fibonacci numbers (the sum of whose reciprocals is 3.36). This law holds at every multiple of
    WINDOW; within a window the rows come in an order drawn from seed, so that a place in a batch is not always of one task, and a
    task's epoch may so begin up to a window before its last one ends. Shares are multiples of 2**-31 at each node.
    """

    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    seed: int = 0

    def __post_init__(self):
        for n in self.sizes:
            _some(n)
        at_least(1, tasks=len(self.sizes))
        if len(self.rates) != len(self.sizes) or not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(f"rates {list(self.rates)} of {len(self.sizes)} tasks: give each one above 0, and leave out a task of rate 0")

    @functools.cached_property
    def _tree(self) -> tuple[int, np.ndarray, np.ndarray]:
        """(root, share [nodes] of the first side, sides [nodes, 2]); a side is a node, or ~task."""
        heap, shares, sides = [(rate, ~task) for task, rate in enumerate(self.rates)], [], []
        heapq.heapify(heap)
        while len(heap) > 1:
            (a, first), (b, second) = heapq.heappop(heap), heapq.heappop(heap)
            shares.append(min(max(round((a / (a + b)) * 2**ONE), 1), 2**ONE - 1))
            sides.append((first, second))
            heapq.heappush(heap, (a + b, len(sides) - 1))
        return heap[0][1], np.array(shares, np.int64), np.array(sides, np.int64).reshape(-1, 2)

    def task(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 [n] -> (task, how many of its rows come before this one), int64 [n] each."""
        window, place = np.divmod(position, WINDOW)
        at = window * WINDOW + permute(place, _key(self.seed, ~window), WINDOW)
        root, shares, sides = self._tree
        node, todo = np.full(at.shape, root), np.arange(at.size if root >= 0 else 0)
        while todo.size:
            here, x = node[todo], at[todo]
            before = _rounded(x, shares[here])
            first = _rounded(x + 1, shares[here]) > before
            at[todo] = np.where(first, before, x - before)
            node[todo] = sides[here, np.where(first, 0, 1)]
            todo = todo[node[todo] >= 0]
        return ~node, at

    def __call__(self, position):
        flat = np.atleast_1d(np.asarray(position, np.int64)).ravel()
        (task, at), ends = self.task(flat), np.cumsum(self.sizes, dtype=np.int64)
        n = np.array(self.sizes, np.int64)[task]
        epoch, index = np.divmod(at, n)
        record = permute(index, _key(self.seed, epoch) ^ _hash(task.astype(np.uint64)), n)  # of task 0 as Shuffled's; _hash(0) is 0
        return _like(position, (ends - self.sizes)[task] + record, epoch, np.ones(flat.shape, bool))


def _rounded(x: np.ndarray, share: np.ndarray) -> np.ndarray:
    """x * share / 2**ONE to the nearest, exactly; x up to 2**62."""
    whole, rest = x >> ONE, x & (2**ONE - 1)
    return whole * share + ((rest * share + 2 ** (ONE - 1)) >> ONE)


def smoothed(sizes: Sequence[int], exponent: float) -> tuple[float, ...]:
    """(n / sum n)**exponent over its sum: the rates of languages by their sizes (Conneau and Lample 2019, section 3.1, exponent .7 for
    what is trained on; multilingual BERT .7; XLM-R .3). 1 keeps the sizes, 0 makes all equal."""
    total = sum(sizes)
    weights = [(n / total) ** exponent for n in sizes]
    return tuple(weight / sum(weights) for weight in weights)
