"""Examples by position, global batches by step; the only file that imports Grain.

Global batch s is rows [s * rows, (s + 1) * rows) of the order, on any mesh and any number of hosts. A process makes the rows that
its devices hold, each once. The state of the data is s. B rows.
"""
import copy
import sys
from collections.abc import Callable, Iterator, Sequence

import grain
import jax
import numpy as np

from ptmjax.data.order import Sequential, counter
from ptmjax.types import BATCH, UserError, check


class Source:
    """example(position): the corrupted example there.

    Args:
        records: `len` and `[i]` give columns (records.Records, or a list).
        order: positions -> (record, epoch, start) (order.py).
        corruption: (columns, rng, records) -> arrays of constant shape, pure.
        seed, name: with record and epoch, the key of the example's randomness; name is the task's.
    """

    def __init__(self, records: Sequence[dict], order: Callable, corruption: Callable, seed: int, name: str):
        if not len(records):
            raise UserError(f"task {name}: there are no records to read, the split is empty")
        self.records, self.order, self.corruption, self.seed, self.name = records, order, corruption, seed, name
        self.spec = {key: (x.shape, x.dtype) for key, x in self._make(0, 0, True).items()}
        check({key: np.empty((1, *shape), kind) for key, (shape, kind) in self.spec.items()})

    def _make(self, record: int, epoch: int, start: bool) -> dict[str, np.ndarray]:
        out = self.corruption(self.records[record], counter(self.seed, self.name, record, epoch), self.records)
        return {"row_weights": np.float32(1), **out, "index": np.int32(record), "start": np.bool_(start)}

    def example(self, position: int) -> dict[str, np.ndarray]:
        """What the corruption gave, with index (record id), start, and row_weights where it gave none."""
        return self.examples(np.array([position]))[0]

    def examples(self, positions: np.ndarray) -> list[dict[str, np.ndarray]]:
        """The examples at positions [B].

        Raises:
            ValueError: the corruption changed its keys, shapes or dtypes, which would compile the step again.
        """
        made = [self._make(*place) for place in zip(*(x.tolist() for x in self.order(positions)))]
        for example in made:
            if any((x.shape, x.dtype) != self.spec.get(key) for key, x in example.items()) or len(example) != len(self.spec):
                found = {key: (x.shape, x.dtype) for key, x in example.items()}
                raise ValueError(f"task {self.name}, record {example['index']}: the corruption gave {found}, for record 0 it gave {self.spec}")
        return made

    def filler(self) -> dict[str, np.ndarray]:
        """A row that counts for nothing: the pad value of every key (types.BATCH)."""
        return {key: np.full(shape, BATCH[key].pad, kind) for key, (shape, kind) in self.spec.items()}


def _needed(rows: int, sharding: jax.sharding.Sharding) -> np.ndarray:
    """Numbers of the rows of a global batch that this process's devices hold, ascending."""
    try:
        sharding.shard_shape((rows,))
    except ValueError as e:
        raise UserError(f"a batch of {rows} rows does not divide over the {len(sharding.device_set)} devices of the mesh's data axes") from e
    held = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in held]))


def _stack(examples: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.stack([example[key] for example in examples]) for key in examples[0]}


def _place(local: dict[str, np.ndarray], rows: int, needed: np.ndarray, sharding: jax.sharding.Sharding) -> dict[str, jax.Array]:
    """Global arrays [B, ...] of which this process has the rows `needed`."""

    def put(x: np.ndarray) -> jax.Array:
        def part(index: tuple[slice, ...]) -> np.ndarray:
            begin, end, _ = index[0].indices(rows)
            return x[np.searchsorted(needed, begin) : np.searchsorted(needed, end)]

        return jax.make_array_from_callback((rows, *x.shape[1:]), sharding, part)

    return {key: put(x) for key, x in local.items()}


def _read(make: Callable[[int], dict], begin: int, end: int, threads: int, prefetch: int) -> Iterator[dict[str, np.ndarray]]:
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(prefetch, threads))
    yield from grain.MapDataset.range(begin, end).map(make).to_iter_dataset(options)


def batches(
    source: Source, rows: int, sharding: jax.sharding.Sharding, begin: int = 0, end: int | None = None, threads: int = 2, prefetch: int = 8
) -> Iterator[dict[str, jax.Array]]:
    """Global batches begin, begin + 1, ... (end - 1; without end, for ever), sharded by rows; the same for any threads and any mesh.

    Batch s is made from s alone: beginning at 10 or at 10**6 reads equally many records. `prefetch` batches are made ahead.
    `sharding` names axis 0 alone, as NamedSharding(mesh, P(("data", "fsdp"))) does, and holds for keys of every rank.
    """
    needed = _needed(rows, sharding)
    make = lambda step: _stack(source.examples(int(step) * rows + needed))
    for local in _read(make, begin, sys.maxsize if end is None else end, threads, prefetch):
        yield _place(local, rows, needed, sharding)


def evaluation(
    source: Source, rows: int, sharding: jax.sharding.Sharding, records: int | None = None, threads: int = 2, prefetch: int = 8
) -> Iterator[dict[str, jax.Array]]:
    """Every record once, in order, as of epoch 0 (the first `records` of them where given), whatever the source's order.

    The last batch is filled up with rows that count for nothing: index -1; weights, segments and row_weights 0.
    """
    total = len(source.records) if records is None else min(records, len(source.records))
    if total < 1:
        raise UserError(f"task {source.name}: an evaluation of {records} records measures nothing, give at least 1")
    needed, filler = _needed(rows, sharding), source.filler()
    fixed = copy.copy(source)
    fixed.order = Sequential(total)

    def make(step: int) -> dict[str, np.ndarray]:
        positions = int(step) * rows + needed
        return _stack(fixed.examples(positions[positions < total]) + [filler] * int((positions >= total).sum()))

    for local in _read(make, 0, -(-total // rows), threads, prefetch):
        yield _place(local, rows, needed, sharding)
