"""Orders and randomness by position: what makes the whole state of the data one number, the step.

An order maps positions (an int, or an int64 array of any shape) to (record, epoch, start) of the same shape. n records.
`start` says that the row does not continue the one before it: a carry begins from zeros there.
"""
import dataclasses
import functools
import math
import zlib

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from ptmjax.types import UserError

ROUNDS = 6
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


def permute(index: np.ndarray, key: np.ndarray, n: int) -> np.ndarray:
    """A permutation of 0..n-1 for each key, in O(1) memory and time: int64 index, uint64 key -> int64.

    A Feistel network on the a x b grid of a = ceil(sqrt(n)), b = ceil(n / a) places, whose rounds add in place of xor, with
    cycle walking: a place beyond n is permuted again (Black and Rogaway 2002). There are fewer than a such places.
    """
    a = np.uint64(math.isqrt(n - 1) + 1)
    b = np.uint64(-(-n // int(a)))
    out, todo = index.astype(np.uint64), np.arange(index.size)
    while todo.size:
        left, right, k = out[todo] // b, out[todo] % b, key[todo]
        for r in range(ROUNDS):
            k = k + np.uint64(0x9E3779B97F4A7C15)
            if r % 2:
                right = (right + _hash(_hash(left ^ k) + k) % b) % b
            else:
                left = (left + _hash(_hash(right ^ k) + k) % a) % a
        out[todo] = left * b + right
        todo = todo[out[todo] >= n]
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
