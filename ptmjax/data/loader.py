"""Examples by position, global batches by step; the only file that imports Grain.

Global batch s is rows [s * rows, (s + 1) * rows) of the order, on any mesh and any number of hosts. A process makes the rows that
its devices hold, each once. The state of the data is s. B rows.
"""
import bisect
import copy
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence

import grain
import jax
import numpy as np

from ptmjax.data.order import Runs, Sequential, counter, static
from ptmjax.types import BATCH, INT32, UserError, at_least, at_most, check


class Source:
    """example(position): the corrupted example there.

    Args:
        records: `len` and `[i]` give columns (records.Records, or a list).
        order: positions -> (record, epoch, start) (order.py).
        corruption: (columns, rng, records) -> arrays of constant shape, pure; its method `rows`, where it has one, does
            many rows at once and gives the same.
        seed, name: with record and epoch, the key of the example's randomness; name is the task's.
        dupe_factor: the epoch is taken modulo this, so that a record is corrupted in so many ways only (BERT's static masks);
            None: afresh in every epoch.
    """

    def __init__(
        self, records: Sequence[dict], order: Callable, corruption: Callable, seed: int, name: str, dupe_factor: int | None = None
    ):
        if not len(records):
            raise UserError(f"task {name}: there are no records to read, the split is empty")
        if dupe_factor is not None:
            at_least(1, dupe_factor=dupe_factor)
        self.dupe_factor = dupe_factor
        self.records, self.order, self.corruption, self.seed, self.name = records, order, corruption, seed, name
        self.spec = {key: (x.shape[1:], x.dtype) for key, x in self._make([0], [0], [True]).items()}
        check({key: np.empty((1, *shape), kind) for key, (shape, kind) in self.spec.items()})

    def _make(self, record: list[int], epoch: list[int], start: list[bool]) -> dict[str, np.ndarray]:
        columns = [self.records[r] for r in record]
        rngs = [counter(self.seed, self.name, r, static(e, self.dupe_factor)) for r, e in zip(record, epoch)]
        if hasattr(self.corruption, "rows"):
            out = self.corruption.rows(columns, rngs, self.records)
        else:
            out = _stack([self.corruption(c, rng, self.records) for c, rng in zip(columns, rngs)], self.name, record)
        ones = np.ones(len(record), np.float32)
        return {"row_weights": ones, **out, "index": np.array(record, np.int32), "start": np.array(start, np.bool_)}

    def example(self, position: int) -> dict[str, np.ndarray]:
        """What the corruption gave, with index (record id), start, and row_weights where it gave none."""
        return {key: x[0] for key, x in self.examples(np.array([position])).items()}

    def examples(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at positions [B], stacked, through the corruption's `rows` where it has one (the same, faster).

        Raises:
            ValueError: the corruption changes its keys, shapes or dtypes, which would compile the step again.
        """
        return self.made(*(x.tolist() for x in self.order(positions)))

    def made(self, record: list[int], epoch: list[int], start: list[bool]) -> dict[str, np.ndarray]:
        """The same of records [B], as of these epochs."""
        out = self._make(record, epoch, start)
        found = {key: (x.shape[1:], x.dtype) for key, x in out.items()}
        if found != self.spec:
            raise ValueError(f"task {self.name}, records {out['index']}: the corruption gave {found}, for record 0 {self.spec}")
        return out

    def filler(self, rows: int) -> dict[str, np.ndarray]:
        """Rows that count for nothing: the pad value of every key (types.BATCH)."""
        return {key: np.full((rows, *shape), BATCH[key].pad, kind) for key, (shape, kind) in self.spec.items()}


class Mixed(Source):
    """example(position) of several sources at once: `order` names records by their number over all of them, one source after the other
    (order.Mixed), and so does `index`. Each is read by its own source: its corruption, its name's randomness, its lookup.

    Raises:
        UserError: they give other keys, shapes or dtypes, or have more records than int32 counts.
    """

    def __init__(self, parts: Sequence[Source], order: Callable, name: str):
        self.parts, self.order, self.name = tuple(parts), order, name
        self.records, self.spec = Joined([part.records for part in parts]), parts[0].spec
        at_most(INT32, **{f"the number of records of {name}": len(self.records)})
        agreed(name, {part.name: part.spec for part in parts})

    def made(self, record: list[int], epoch: list[int], start: list[bool]) -> dict[str, np.ndarray]:
        out = {key: np.empty((len(record), *shape), kind) for key, (shape, kind) in self.spec.items()}
        places: dict[int, list[int]] = {}
        for row, r in enumerate(record):
            places.setdefault(self.records.part(r), []).append(row)
        for number, rows in places.items():
            begin = self.records.begins[number]
            made = self.parts[number].made(*([of[row] - minus for row in rows] for of, minus in ((record, begin), (epoch, 0))),
                                           [start[row] for row in rows])
            for key, x in made.items():
                out[key][rows] = x
            out["index"][rows] += begin
        return out


class Joined(Sequence):
    """Records of several tasks by number, one task after the other."""

    def __init__(self, parts: Sequence[Sequence[dict]]):
        self.parts = parts
        *self.begins, self._total = itertools.accumulate(map(len, parts), initial=0)

    def part(self, index: int) -> int:
        """Which task's."""
        return bisect.bisect_right(self.begins, index) - 1

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return self.parts[self.part(index)][index - self.begins[self.part(index)]]

    @property
    def counts(self) -> np.ndarray:
        """int64 [V]: how often each id occurs in all of them."""
        return sum(part.counts for part in self.parts)


def agreed(name: str, specs: dict[str, dict]) -> dict:
    """The spec of the tasks of a mixture; UserError that names two where they differ."""
    (first, one), *others = specs.items()
    for other, spec in others:
        if differ := sorted(key for key in one.keys() | spec.keys() if one.get(key) != spec.get(key)):
            shown = lambda of: f"{of[differ[0]][1]}{list(of[differ[0]][0])}" if differ[0] in of else "none"
            raise UserError(f"mixture {name}: {differ[0]!r} of {first!r} is {shown(one)}, of {other!r} {shown(spec)}: mix tasks whose rows "
                            "have the same keys and shapes")
    return one


def _stack(examples: list[dict[str, np.ndarray]], name: str, record: list[int]) -> dict[str, np.ndarray]:
    kinds = [{key: (np.shape(x), np.asarray(x).dtype) for key, x in example.items()} for example in examples]
    for other, kind in zip(record, kinds):
        if kind != kinds[0]:
            raise ValueError(f"task {name}: the corruption gave {kind} for record {other}, {kinds[0]} for record {record[0]}")
    return {key: np.stack([example[key] for example in examples]) for key in examples[0]}


def _needed(rows: int, sharding: jax.sharding.Sharding) -> np.ndarray:
    """Numbers of the rows of a global batch that this process's devices hold, ascending."""
    try:
        sharding.shard_shape((rows,))
    except ValueError as e:
        parts = len(set(map(str, sharding.devices_indices_map((len(sharding.device_set),)).values())))
        raise UserError(f"a batch of {rows} rows does not divide into the mesh's {parts} parts: use a multiple of {parts}") from e
    held = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in held]))


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
    return iter(grain.MapDataset.range(begin, end).map(make).to_iter_dataset(options))


def batches(
    source: Source, rows: int, sharding: jax.sharding.Sharding, begin: int = 0, end: int | None = None, threads: int = 2, prefetch: int = 8
) -> Iterator[dict[str, jax.Array]]:
    """Global batches begin, begin + 1, ... (end - 1; without end, for ever), sharded by rows; the same for any threads and mesh.

    Batch s is made from s alone: beginning at 10 or at 10**6 reads equally many records. `prefetch` batches are made ahead.
    `sharding` names axis 0 alone, as NamedSharding(mesh, P(("data", "fsdp"))) does, and holds for keys of every rank.
    """
    needed = _needed(rows, sharding)
    make = lambda step: source.examples(int(step) * rows + needed)
    read = _read(make, begin, sys.maxsize if end is None else end, threads, prefetch)
    return (_place(local, rows, needed, sharding) for local in read)


def evaluation(
    source: Source, rows: int, sharding: jax.sharding.Sharding, records: int | None = None, threads: int = 2, prefetch: int = 8,
    streams: bool = False,
) -> Iterator[dict[str, jax.Array]]:
    """Every record once, as of epoch 0 (the first `records` of them where given), whatever the source's order: in order, or
    with `streams` so that each row goes on from batch to batch (order.Runs), for objectives with a carry.

    Rows beyond the records count for nothing: index -1; weights, segments and row_weights 0.
    """
    total = len(source.records) if records is None else min(records, len(source.records))
    if total < 1:
        raise UserError(f"task {source.name}: an evaluation of {records} records measures nothing, give at least 1")
    needed, fixed = _needed(rows, sharding), copy.copy(source)
    fixed.order = Runs(total, rows) if streams else Sequential(total)

    def make(step: int) -> dict[str, np.ndarray]:
        positions = int(step) * rows + needed
        real = positions[fixed.order(positions)[0] < total] if streams else positions[positions < total]
        fill = source.filler(len(positions) - len(real))
        if not len(real):  # of the last batch, this process holds filler alone
            return fill
        made = fixed.examples(real)
        return {key: np.concatenate([made[key], fill[key]]) for key in made}

    read = _read(make, 0, -(-total // rows), threads, prefetch)
    return (_place(local, rows, needed, sharding) for local in read)
