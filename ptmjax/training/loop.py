"""The loop: stages of one run, taken up where it stopped.

What is found first wins: the newest readable checkpoint of the work folder, else what `born` makes: the initial law under
the run's seed, with a published model's parameters in place where one is named.
A run is a list of stages (BERT: length 128, then 512); the step counter, the parameters and the learning-rate schedule go
on from stage to stage, the carry begins anew, and so does the optimizer where a stage trains other parameters.
"""
import bisect
import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from ptmjax.objectives.base import Objective
from ptmjax.parallel.distributed import first_alone
from ptmjax.parallel.ending import ending
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training import interrupt, scale
from ptmjax.training.build import Build, Leaf
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.training.metrics import Files, Totals, number
from ptmjax.training.state import Plan, TrainState
from ptmjax.training.step import make_eval, make_step
from ptmjax.types import Array, Batch, UserError, at_least

Batches = Callable[[NamedSharding, int, int], Iterator[Batch]]  # (sharding, rows, first batch): endless
Spec = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # key -> shape of a row, type
Heldout = Callable[[NamedSharding, int], Iterator[Batch]]  # (sharding, rows): every record once
SHOWN = 64  # record ids in a message


class Optimizer(Protocol):
    def transform(self, leaves: Mapping[str, Leaf], steps: int | None) -> optax.GradientTransformation: ...

    def rate(self, step: int, steps: int) -> float:
        """Of the step that follows `step` of the run's `steps` steps."""


class Watcher(Protocol):
    """Who looks on (progress bar, TensorBoard); called on process 0. A line is what stands in metrics.jsonl."""

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        """After a logged step; seconds and tokens since the one before."""

    def evaluated(self, line: Mapping) -> None: ...


@dataclass(frozen=True)
class Stage:
    """One part of a run: networks (with what is frozen), loss, data, and its length in steps of `rows` rows."""

    build: Build
    objective: Objective
    optimizer: Optimizer
    batches: Batches
    steps: int
    rows: int
    micro: int = 1
    heldout: Mapping[str, Heldout] = field(default_factory=dict)
    fsdp: str = "parameters"


@dataclass(frozen=True)
class Every:
    """How often, in steps; 0 is never. The last step of a stage is always logged, evaluated and saved.

    nonfinite: after so many steps in a row that were not finite (make_step), or a whole stage of them, the run stops. It is looked
    at where the host waits for the device anyway, at steps that are logged, evaluated or saved, and before the latter two.
    """

    log: int = 10
    evaluate: int = 500
    save: int = 500
    nonfinite: int = 20

    def __post_init__(self):
        at_least(0, log=self.log, evaluate=self.evaluate, save=self.save, nonfinite=self.nonfinite)


class Run(NamedTuple):
    """What all stages share."""

    mesh: Mesh
    every: Every
    checkpoints: Checkpoints
    watchers: list[Watcher]  # none on all processes but the first
    steps: int
    agreed: Callable[[int, bool], bool]  # of ending()


def train(stages: Sequence[Stage], workdir: epath.PathLike, mesh: Mesh, *, seed: int = 0, every: Every = Every(), keep: int = 2,
          best: str | None = None, watch: Callable[[int], Sequence[Watcher]] = lambda done: (), say: Callable[[str], None] = print,
          born: Callable[[Plan], TrainState] = Plan.create) -> TrainState:
    """Runs the stages from where the work folder stands and returns the last state.

    best: a held-out number, "set/name", whose best evaluated step is saved and kept as well (check_best).
    born: makes the state at step 0 where the folder has no checkpoint (published.born: from a published model).
    watch: called on process 0 with the number of steps that are done, once that is known; gives who looks on.

    Raises:
        interrupt.Stopped: SIGTERM has come, in the command's process: the step it names is saved.
    """
    folder = epath.Path(workdir)
    ends = list(itertools.accumulate(stage.steps for stage in stages))
    plans = [plan_of(stage, mesh, seed, ends[-1]) for stage in stages]
    begins = [0, *ends[:-1]]
    stage_at = lambda step: next((i for i, end in enumerate(ends) if step <= end), len(ends) - 1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(interrupt.stoppable())
        agreed = stack.enter_context(ending())
        checkpoints = stack.enter_context(Checkpoints(folder / "checkpoints", keep, say, best))
        state = checkpoints.restore(lambda step: plans[stage_at(step)].abstract, scale.PATHS)
        state = born(plans[0]) if state is None else state
        done = int(state.step)
        check_begin(int(state.loop["begin"]), done, begins[stage_at(done)])
        run = Run(mesh, every, checkpoints, [], ends[-1], agreed)
        first_alone(lambda: run.watchers.extend(open_watchers(stack, folder, done, watch, say)), f"opening the files of {folder}")
        for stage, plan, begin, end in zip(stages, plans, begins, ends):
            if done < end:
                state = adopt(plan, state, begin) if 0 < begin == done else state
                state = run_stage(run, stage, plan, state, begin, end)
                done = end
        return state


def check_begin(found: int, done: int, begin: int) -> None:
    """A finished stage keeps its length: the data of the present one are counted from its first step."""
    if found != begin:
        raise UserError(f"the run stands at step {done}, in a stage that began at step {found}; by the present settings it began at "
                        f"{begin}: give the stages before it their earlier number of steps")


def open_watchers(stack: contextlib.ExitStack, folder: epath.Path, done: int, watch: Callable[[int], Sequence[Watcher]],
                  say: Callable[[str], None]) -> list[Watcher]:
    return [stack.enter_context(contextlib.closing(Files(folder, done, say))), *watch(done)]


def plan_of(stage: Stage, mesh: Mesh, seed: int, steps: int | None = None) -> Plan:
    """The plan of a stage; steps: of the run, all stages together, which a schedule without an end of its own needs."""
    trainable = {name: leaf for name, leaf in stage.build.leaves.items() if name not in stage.build.frozen}
    if not trainable:
        raise UserError("frozen patterns match every parameter, and nothing is trained: leave some out")
    return Plan(stage.build, stage.objective, stage.optimizer.transform(trainable, steps), mesh, stage.rows, seed, stage.micro,
                stage.fsdp)


def check_rate(stages: Sequence[Stage]) -> None:
    """UserError where the learning rate is 0 before the stages end: all that follows would train nothing."""
    total = sum(stage.steps for stage in stages)
    rate = functools.partial(stages[-1].optimizer.rate, steps=total)
    if total > 1 and rate(total - 1) == 0:
        ends = 1 + bisect.bisect_left(range(1, total), True, key=lambda step: rate(step) == 0)
        raise UserError(f"the learning rate is 0 after {ends} steps, and the stages have {total}: give both the same number")


def check_best(best: str | None, stage: Stage, numbers: Iterable[str]) -> None:
    """UserError where `best` is no number ("set/name") of an evaluation of the stage, which gives `numbers` for each set."""
    known = [f"{name}/{number}" for name in stage.heldout for number in numbers]
    if best is not None and best not in known:
        raise UserError(f"Experiment.best is {best!r}; it may be one of {', '.join(map(repr, known))}, or None")


def abstract_batch(plan: Plan, spec: Spec) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of a batch of these keys."""
    rows = rows_sharding(plan.mesh)
    return {key: jax.ShapeDtypeStruct((plan.rows, *shape), kind, sharding=rows) for key, (shape, kind) in spec.items()}


def tokens_of(batch: Mapping[str, Any]) -> int:
    """Tokens of a batch, both sides of an encoder-decoder."""
    return sum(x.size for name, x in batch.items() if name in ("tokens", "decoder_tokens"))


def rehearse(plan: Plan, train: Spec, heldout: Spec) -> list[str]:
    """Traces a step and an evaluation over batches of these keys: parts that do not fit together are found before anything
    is computed or written. Gives the names of the numbers of an evaluation."""
    state, batch = plan.abstract, functools.partial(abstract_batch, plan)
    with jax.set_mesh(plan.mesh):
        make_step(plan).eval_shape(state, batch(train))
        evaluation = make_eval(plan.build, plan.objective, plan.seed)
        sums, metrics, _ = evaluation.eval_shape(state.params, batch(heldout), state.carry, state.step)
    return sorted({"loss", *sums, *metrics})


def adopt(plan: Plan, state: TrainState, begin: int) -> TrainState:
    """The state with which a later stage begins: its own carry, and its own optimizer where that has another tree. Nothing else
    is made, so that a model that fits a stage fits the next."""
    new = plan.abstract
    if state.params.keys() != new.params.keys():
        raise UserError(f"a stage has other parameters than the one before it: {sorted(state.params.keys() ^ new.params.keys())[:4]}")
    goes_on = jax.tree.structure(state.opt_state) == jax.tree.structure(new.opt_state)
    moments = state.opt_state if goes_on else plan.made(plan.moments, new.opt_state, state.params)
    scalars = state.loop | {"begin": jax.device_put(np.int32(begin), new.loop["begin"].sharding)}
    return dataclasses.replace(state, carry=plan.made(plan.carry, new.carry, state.params), opt_state=moments, loop=scalars)


def run_stage(run: Run, stage: Stage, plan: Plan, state: TrainState, begin: int, end: int) -> TrainState:
    """Steps begin + 1 .. end, from where the state stands. At a step: log, evaluate, save, in this order, so that a
    restored step has all its lines."""
    step_fn, eval_fn = make_step(plan), make_eval(plan.build, plan.objective, plan.seed)
    start = int(state.step)
    batches = stage.batches(rows_sharding(run.mesh), stage.rows, start - begin)
    since, tokens = time.perf_counter(), 0
    with jax.set_mesh(run.mesh):
        for step in range(start + 1, end + 1):
            interrupt.check()
            batch = next(batches)
            state, metrics = step_fn(state, batch)
            tokens += tokens_of(batch)
            if due(step, end, run.every.log):
                numbers = {"rate": stage.optimizer.rate(step - 1, run.steps)} | metrics
                line = {"step": step} | {name: number(x) for name, x in sorted(numbers.items())}
                seconds = time.perf_counter() - since
                tell(run, "trained", line, seconds, tokens)
                tokens = 0
            if any(due(step, end, every) for every in (run.every.log, run.every.evaluate, run.every.save)):
                check_finite(run.every.nonfinite, step, state, batch, end - start if step == end else None)
            numbers: dict[str, float] = {}
            if due(step, end, run.every.evaluate):
                for name, heldout in stage.heldout.items():
                    found = evaluate(plan, eval_fn, state.params, step, heldout(rows_sharding(run.mesh), stage.rows))
                    tell(run, "evaluated", {"step": step, "set": name} | found)
                    numbers |= {f"{name}/{what}": x for what, x in found.items() if x is not None}
            stop = run.agreed(step, interrupt.terminated()) and step < run.steps
            if due(step, end, run.every.save) or stop or run.checkpoints.improved(step, numbers):
                run.checkpoints.save(step, state, numbers)
            if stop:
                run.checkpoints.wait()
                raise interrupt.Stopped(step)
            if tokens == 0:  # evaluation and saving are not the step's time
                since = time.perf_counter()
    return state


def check_finite(limit: int, step: int, state: TrainState, batch: Batch, all_steps: int | None = None) -> None:
    """UserError, on all processes, where none of the `limit` steps up to this one was finite, or, at the end, none of `all_steps`.
    Nothing of them is saved."""
    in_a_row = int(state.loop["in_a_row"])
    if limit == 0 or in_a_row < min(limit, all_steps or limit):
        return
    index = batch["index"]
    ids = np.asarray(index if jax.process_count() == 1 else multihost_utils.process_allgather(index, tiled=True)).tolist()
    shown = ", ".join(map(str, ids[:SHOWN])) + f" ... ({len(ids)} in all)" * (len(ids) > SHOWN)
    raise UserError(f"gradient or parameters were not finite in steps {step - in_a_row + 1} to {step}, the last of which read the records "
                    f"{shown}: lower the rate, or mend these records, and start again from the last checkpoint (Every.nonfinite = {limit} "
                    "such steps in a row, or a stage of nothing else, stop a run)")


def due(step: int, end: int, every: int) -> bool:
    return step == end or (every > 0 and step % every == 0)


def tell(run: Run, what: str, *about) -> None:
    """Calls method `what` of the watchers; a disk that is full for process 0 ends all processes."""
    first_alone(lambda: [getattr(watcher, what)(*about) for watcher in run.watchers], "writing its log")


def evaluate(plan: Plan, eval_fn: Callable, params: dict[str, Array], step: int, batches: Iterator[Batch]) -> dict[str, float]:
    """Losses and metrics over all records of `batches`, each counted once, and how many there were."""
    losses, metrics, records = Totals(), Totals(), 0
    carry = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), plan.abstract.carry)
    for batch in batches:
        sums, others, carry = eval_fn(params, batch, carry, jnp.int32(step))
        losses.add(sums)
        metrics.add(others)
        records += int((batch["index"] >= 0).sum())
    means = losses.means()
    found = {"loss": float(plan.objective.total(means))} | means | metrics.means()
    return {name: x if math.isfinite(x) else None for name, x in found.items()} | {"records": records}
