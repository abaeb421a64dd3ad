"""What the seven systems share in their tests: a corpus of word lists, and runs of the one step.

B rows, N words of a list.
"""
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptmjax.data.loader import Source, batches, evaluation
from ptmjax.data.order import Shuffled, Streams
from ptmjax.objectives.base import Objective
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training.build import Build
from ptmjax.training.optimizer import AdamW
from ptmjax.training.schedules import linear
from ptmjax.training.state import Plan, TrainState
from ptmjax.training.step import make_eval, make_step
from ptmjax.types import Batch, Sum

PAD, CLS, SEP, MASK = range(4)
FIRST, WORDS = 4, 32  # ids of the words: FIRST ... FIRST + WORDS - 1
SIZE = FIRST + WORDS
N = 8  # words of a list
ROWS = 32
PEAK = 3e-3  # learning rate where a test does not choose its own
LONG = 100  # steps
UNSEEN = 1  # seed of the records of evaluation; training reads those of seed 0
Lines = list[dict[str, float]]


class System(NamedTuple):
    """What makes a system: networks, losses, corruption, the records it reads, and whether rows continue each other."""

    build: Build
    objective: Objective
    corruption: Callable
    records: Callable[[int], Sequence[dict]]  # seed -> records
    streams: bool = False
    fsdp: str = "parameters"

    def source(self, seed: int = 0, rows: int = ROWS) -> Source:
        records = self.records(seed)
        order = Streams(len(records), rows) if self.streams else Shuffled(len(records))
        return Source(records, order, self.corruption, seed, "system")


@functools.cache
def lists(seed: int, count: int = 2048) -> list[dict]:
    """Records of N random words each, and their own number."""
    words = np.random.default_rng(seed).integers(FIRST, SIZE, (count, N), dtype=np.int32)
    return [{"words": w, "document": i} for i, w in enumerate(words)]


def pad(x: Sequence[int], length: int) -> np.ndarray:
    return np.pad(np.asarray(x, np.int32), (0, length - len(x)))


def mesh_of(shape: tuple[int, int, int]) -> jax.sharding.Mesh:
    text = ",".join(f"{axis}={n}" for axis, n in zip(("data", "fsdp", "model"), shape))
    return make_mesh(text, jax.devices()[: int(np.prod(shape))])


ONE = (1, 1, 1)


@functools.cache
def compiled(system: System, shape: tuple[int, int, int], micro: int, peak: float, steps: int, rows: int) -> tuple[Plan, Callable]:
    """The plan and the step, traced once for all runs of a test session."""
    leaves = {n: leaf for n, leaf in system.build.leaves.items() if n not in system.build.frozen}
    tx = AdamW(linear(peak, min(10, steps // 2), steps)).transform(leaves)
    plan = Plan(system.build, system.objective, tx, mesh_of(shape), rows, seed=0, micro=micro, fsdp=system.fsdp)
    return plan, make_step(plan)


def optimised(step: Callable, *first) -> Callable:
    """The step compiled for arguments like `first` as users compile it: a run of hundreds of steps is three times as fast."""
    return step.lower(*first).compile(compiler_options={"xla_backend_optimization_level": "3"})


@functools.cache
def born(system: System, rows: int) -> TrainState:
    """The initial state, on one device: compiled once for all meshes."""
    return compiled(system, ONE, 1, PEAK, 10, rows)[0].create()


def placed(state: TrainState, like: TrainState) -> TrainState:
    """A copy of `state` that lies as `like` says; the step gives up the state that it gets."""
    return jax.tree.map(lambda x, at: jax.device_put(jnp.copy(x), at.sharding), state, like)


def run(system: System, shape: tuple[int, int, int] = ONE, micro: int = 1, steps: int = 10, *, begin: int = 0, total: int | None = None,
        state: TrainState | None = None, change: Callable[[Batch], Batch] = lambda b: b, peak: float = PEAK, rows: int = ROWS,
        params: Mapping[str, jax.Array] = {}) -> tuple[Lines, TrainState]:
    """Steps begin ... steps - 1 of a run of `total`: the metrics of each, and the state. `params` replace initial ones."""
    plan, step = compiled(system, shape, micro, peak, total or steps, rows)
    lines = []
    state = placed(born(system, rows), plan.abstract) if state is None else state
    state = replaced(state, params) if params else state
    with jax.set_mesh(plan.mesh):
        for batch in batches(system.source(rows=rows), rows, rows_sharding(plan.mesh), begin, steps):
            batch = change(batch)
            step = optimised(step, state, batch) if not lines and steps - begin >= LONG else step
            state, metrics = step(state, batch)
            lines.append(metrics)
    return [{k: float(v) for k, v in line.items()} for line in lines], state


def replaced(state: TrainState, params: Mapping[str, jax.Array]) -> TrainState:
    unknown = set(params) - set(state.params)
    if unknown:
        raise ValueError(f"no such parameters: {sorted(unknown)}")
    new = {n: jax.device_put(jnp.copy(params[n]), p.sharding) if n in params else p for n, p in state.params.items()}
    return dataclasses.replace(state, params=new)


def evaluated(system: System, params: Mapping[str, jax.Array], rows: int = ROWS, *, steps: int = 16, records: int = 512,
              cut: bool = False) -> dict[str, Sum]:
    """Sums over unseen records: `records` of them, each once; or `steps` batches of streams whose carry goes on (cut: begins anew)."""
    one, total = mesh_of(ONE), None
    source, evaluate = system.source(UNSEEN, rows), make_eval(system.build, system.objective)
    records = rows * steps if system.streams else records
    found = evaluation(source, rows, rows_sharding(one), records, streams=system.streams)
    with jax.set_mesh(one):
        begin = carry = system.objective.init_carry(system.build.nets(params), rows)
        for batch in found:
            losses, metrics, carry = evaluate(params, batch, begin if cut else carry, jnp.int32(0))
            sums = losses | metrics
            total = sums if total is None else {name: s + total[name] for name, s in sums.items()}
    return {name: Sum(np.float64(s.value), np.float64(s.weight)) for name, s in total.items()}
