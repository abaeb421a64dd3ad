"""What every layer shares: batches, keys, sums, the cross entropy, sharding rules, and the one error a user sees.

B rows, L length, K slots.
"""
import contextlib
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

Array = jax.Array
Batch = Mapping[str, Array]
PyTree = Any


FLOAT32, LEAST = 3.4028234e38, 1.4e-45  # the greatest, and the least above 0
INT32 = 2**31 - 1  # steps, rows and ids are counted in int32 on a device


class UserError(ValueError):
    """A fault that the user can mend: one line that says what, where and how; the commands exit with code 2."""


class Late(UserError):
    """Another process of the run did not come in time, and nothing that the user wrote is known to be wrong: all are to be started again,
    as launchers do on this exit code (main.LOST)."""


def short(value: object) -> str:
    """For a message: what stands in it whole where it is no longer than a name."""
    return text if len(text := str(value)) <= 80 else f"{text[:77]}..."


def one_of(what: str, value: Any, choices: Iterable) -> None:
    """UserError where a value is none of its choices."""
    if value not in choices:
        raise UserError(f"{what} is {value!r}; it may be one of {', '.join(map(repr, sorted(choices)))}")


def at_least(least: float, **values: float) -> None:
    """UserError where a named number is below `least`, or not finite."""
    for name, value in values.items():
        if not least <= value < math.inf:
            raise UserError(f"{name} is {value}; it must be at least {least}")


def above_zero(**values: float) -> None:
    """UserError where a named number is not, in float32, or not finite there."""
    for name, value in values.items():
        if not LEAST <= value <= FLOAT32:
            raise UserError(f"{name} is {value}; it must be above 0, and a number in float32")


def at_most(most: float, **values: float) -> None:
    """UserError where a named number is above `most`, or none."""
    for name, value in values.items():
        if not value <= most:
            raise UserError(f"{name} is {value}; it must be at most {most}")


def pytree(cls):
    """A frozen dataclass that jax sees as a tree of its fields."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


# ------------------------------------------------------------------ batches
PATTERNS = ("bidirectional", "left to right", "right to left", "seq2seq")
BIDIRECTIONAL, LEFT_TO_RIGHT, RIGHT_TO_LEFT, SEQ2SEQ = range(4)


class Kind(NamedTuple):
    """A key of a batch. `rank` counts the row axis; `pad` fills places that hold nothing, and rows that fill up a batch."""

    rank: int
    dtype: str
    pad: float
    meaning: str


BATCH: dict[str, Kind] = {
    "tokens": Kind(2, "int32", 0, "[B, L] input ids after corruption"),
    "targets": Kind(2, "int32", 0, "[B, L] original ids, read where weights > 0"),
    "weights": Kind(2, "float32", 0, "[B, L] which positions are scored, and how much"),
    "order_weights": Kind(2, "float32", 0, "[B, L] which positions show a token of their neighbourhood, shuffled, and are scored for it"),
    "left": Kind(2, "int32", 0, "[B, L] of a position of a span the position before the span, else 0"),
    "right": Kind(2, "int32", 0, "[B, L] of a position of a span the position behind the span, else 0"),
    "segments": Kind(2, "int32", 0, "[B, L] number of the packed example in its row from 1; 0 is padding"),
    "positions": Kind(2, "int32", 0, "[B, L] position inside the packed example"),
    "types": Kind(2, "int32", 0, "[B, L] token type (sentence A 0, sentence B 1)"),
    "languages": Kind(2, "int32", 0, "[B, L] number of the language of a token"),
    "label": Kind(1, "int32", 0, "[B] class of the row"),
    "pattern": Kind(1, "int32", 0, "[B] who sees whom in the row: the place in PATTERNS"),
    "visible": Kind(3, "bool", 0, "[B, L, L] query i may see key j"),
    "decoder_tokens": Kind(2, "int32", 0, "[B, L'] decoder input ids, shifted right"),
    "decoder_segments": Kind(2, "int32", 0, "[B, L'] as segments, of the decoder"),
    "decoder_positions": Kind(2, "int32", 0, "[B, L'] as positions, of the decoder"),
    "index": Kind(1, "int32", -1, "[B] record id; always there; -1 fills up the last evaluation batch"),
    "row_weights": Kind(1, "float32", 0, "[B] weight of the row in row-level losses; 0 on rows that fill up a batch"),
    "start": Kind(1, "bool", 0, "[B] the row begins a new stream: its carry starts from zeros"),
}


def register(name: str, kind: Kind) -> None:
    """Adds a batch key; the same kind twice is fine, another kind under a taken name is a ValueError."""
    if BATCH.setdefault(name, kind) != kind:
        raise ValueError(f"batch key {name!r} is taken: {BATCH[name]}")


def kind_of(name: str) -> Kind:
    """What BATCH says of a key; UserError where it does not know it."""
    if name not in BATCH:
        raise UserError(f"batch key {name!r} is not in types.BATCH: types.register it with rank, dtype, pad and meaning")
    return BATCH[name]


def check(batch: Batch, keys: tuple[str, ...] = ()) -> None:
    """Raises ValueError where a batch lacks one of `keys`, or holds a key of another rank or dtype than BATCH says."""
    for name in keys:
        if name not in batch:
            raise ValueError(f"batch has no {name!r} ({BATCH[name].meaning}); it has {sorted(batch)}")
    for name, x in batch.items():
        kind = kind_of(name)
        if x.ndim != kind.rank or np.dtype(x.dtype) != np.dtype(kind.dtype):
            raise ValueError(f"batch key {name!r} is {x.dtype}{list(x.shape)}, not rank {kind.rank} {kind.dtype}: {kind.meaning}")


# ------------------------------------------------------------------ randomness
@pytree
class Key:
    """Randomness of the rows at hand: bits depend on the base key, the row's number and the place in the row.

    So dropout and samples are the same for any mesh and any number of micro-batches.
    """

    base: Array  # () typed key; alone only for what all rows share (layer drop, weight drop)
    rows: Array  # [B] int32: number of the row in the global batch (training) or record id (evaluation)

    def fold(self, name: str | int | Array) -> "Key":
        return Key(jax.random.fold_in(self.base, zlib.crc32(name.encode()) if isinstance(name, str) else name), self.rows)

    def each(self, draw: Callable[..., Array], *xs: PyTree) -> Array:
        """[B, ...]: draw(key of the row, *xs of the row) for every row."""
        return jax.vmap(lambda row, *x: draw(jax.random.fold_in(self.base, row), *x))(self.rows, *xs)

    def repeat(self, n: int) -> "Key":
        """Keys of [B * n] rows: n for every row, in order."""
        return Key(self.base, (self.rows[:, None] * n + jnp.arange(n)).reshape(-1))


def fold(key: Key | None, name: str | int | Array) -> Key | None:
    """key.fold(name), and None stays None (no dropout)."""
    return None if key is None else key.fold(name)


@pytree
class Keys:
    """dropout is None in evaluation; sample (negatives, sampled replacements) is always there."""

    dropout: Key | None
    sample: Key


# ------------------------------------------------------------------ sums
@pytree
class Sum:
    """A loss or a metric inside a step: adds over rows, micro-batches and evaluation batches."""

    value: Array
    weight: Array

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.value + other.value, self.weight + other.weight)

    def mean(self) -> Array:
        """value / weight; 0/0 is 0: the one place where that is decided."""
        none = self.weight == 0
        return jnp.where(none, 0.0, self.value / jnp.where(none, 1, self.weight))


def cross_entropy(scores: Array, targets: Array) -> tuple[Array, Array, Array]:
    """scores [..., V], targets [...] -> (-log softmax at the target, whether it has the highest score, log of the softmax's
    denominator), float32 [...] each. UserError where the shapes do not go together."""
    if scores.shape[:-1] != targets.shape:
        raise UserError(f"scores of shape {scores.shape} do not go with targets of shape {targets.shape}: let the head score every place, "
                        "or the first alone (Classifier.first), as its loss asks")
    scores = scores.astype(jnp.float32)
    log_z, at = jax.nn.logsumexp(scores, -1), jnp.take_along_axis(scores, targets[..., None], -1)[..., 0]
    return log_z - at, (highest(scores) == targets).astype(jnp.float32), log_z


def highest(x: Array) -> Array:
    """argmax of the last axis, the first of equals. As two plain reductions: XLA on a CPU runs that of pairs, which argmax is, five
    times as long."""
    place = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return jnp.where(x == x.max(-1, keepdims=True), place, x.shape[-1]).min(-1)


# ------------------------------------------------------------------ scored positions
@pytree
class Slots:
    """The scored positions of every row, in K slots, so that a head works on them alone."""

    where: Array  # [B, K] int32
    weight: Array  # [B, K]; 0 where a slot is empty
    overflow: Array  # () scored positions that found no slot: 0 in shipped runs

    def take(self, x: Array) -> Array:
        """[B, L, ...] -> [B, K, ...]."""
        return jnp.take_along_axis(x, self.where.reshape(*self.where.shape, *[1] * (x.ndim - 2)), 1)


def slots(weights: Array, k: int) -> Slots:
    """The first k scored positions of each row, in order; the only place that picks them. weights [B, L]."""
    where = jnp.argsort(weights <= 0, axis=1, stable=True)[:, :k]
    weight = jnp.take_along_axis(weights, where, 1)
    return Slots(where, weight, (weights > 0).sum() - (weight > 0).sum())


# ------------------------------------------------------------------ sharding rules
ROWS = ("data", "fsdp")  # mesh axes over which the rows of a batch lie
RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ROWS,
    "length": None,  # places between the parts of layers
    "embed": "fsdp",
    "vocab": "model",
    "heads": "model",
    "mlp": "model",
    "norm": None,
    "layers": None,
}
SEQUENCE: dict[str, str | tuple[str, ...] | None] = {"length": "model"}  # of a stack that shares its places out (Stack.sequence)
WHOLE: dict[str, str | tuple[str, ...] | None] = {"embed": None}  # of parameters that fsdp does not divide (Experiment.fsdp)
_active = [RULES]


@contextlib.contextmanager
def sharding_rules(rules: Mapping[str, str | tuple[str, ...] | None]):
    """Inside, logical names map to mesh axes by `rules` (those not named keep RULES)."""
    _active.append({**_active[-1], **rules})
    try:
        yield
    finally:
        _active.pop()


def spec(*names: str | None) -> P:
    """The PartitionSpec of logical names under the active rules; an unknown name is a ValueError."""
    for name in names:
        if name is not None and name not in _active[-1]:
            raise ValueError(f"logical axis {name!r} is not in the sharding rules {sorted(_active[-1])}")
    return P(*(None if name is None else _active[-1][name] for name in names))


def constrain(x: Array, *names: str | None) -> Array:
    """Shards x by logical names; without a mesh it does nothing. An axis that the mesh does not divide is a UserError."""
    if len(names) != x.ndim:
        raise ValueError(f"{len(names)} axis names {names} for an array of shape {x.shape}")
    wanted, mesh = spec(*names), jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    check_divides(f"an array of shape {x.shape}", x.shape, wanted, names, mesh.shape)
    return jax.lax.with_sharding_constraint(x, wanted)


def check_divides(what: str, shape: tuple[int, ...], wanted: P, names: tuple[str | None, ...], mesh: Mapping[str, int]) -> None:
    """UserError where a mesh axis does not divide an axis of `shape` (XLA would replicate or pad it without a word)."""
    for size, axis, name in zip(shape, wanted, names):
        parts = math.prod(mesh[a] for a in ((axis,) if isinstance(axis, str) else axis or ()))
        if size % parts:
            raise UserError(f"{what}: axis {name!r} of {size} does not divide by mesh axis {axis!r} of {parts}: "
                            "choose another mesh or size")
