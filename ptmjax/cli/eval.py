"""ptmjax eval: the held-out numbers of a work folder's newest checkpoint."""
import argparse
import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ptmjax.cli import folder, places, readout, session
from ptmjax.cli.experiment import VALIDATION, Data, Experiment
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training import loop
from ptmjax.training.build import Build
from ptmjax.training.metrics import on_disk
from ptmjax.training.rowwise import make_rows
from ptmjax.training.state import Plan
from ptmjax.training.step import make_eval
from ptmjax.types import INT32, UserError, at_least, at_most

HELP = "evaluate the newest checkpoint of a work folder on held-out text, every record once"
EXAMPLES = """
ptmjax eval --workdir=runs/demo                 # the newest checkpoint
ptmjax eval --workdir=runs/demo --step=best     # of a run with --gin.Experiment.best='"validation/loss"'
ptmjax eval --workdir=runs/demo --task=en_pd_mlm_64 --head=mlm    # one corruption for runs that were trained on different ones
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_workdir(parser)
    session.add_step(parser)
    session.add_cache(parser)
    session.add_processes(parser)
    parser.add_argument("--mesh", default="", help='for example "data=4,model=2" (default: all devices on data)')
    parser.add_argument("--batch", type=int, help="rows at a time (default: as trained); the numbers do not depend on it")
    group = parser.add_argument_group("what runs of different corruptions share (docs/sweeps.md)")
    group.add_argument("--task", metavar="NAME",
                       help="all that this task holds out, in its readout and as of seed 0, in place of the run's own; of one vocabulary")
    group.add_argument("--head", metavar="NAME", help="score the targets by this head alone (mlm), whatever the loss of the run")
    group.add_argument("--rows", type=places.here, metavar="FILE", help="also write the sums of every record to this .npz")


def run(args: argparse.Namespace) -> int:
    if args.batch is not None:
        at_least(1, batch=args.batch)
        at_most(INT32, batch=args.batch)
    session.join(args)
    held, mesh = session.saved(args.workdir), make_mesh(args.mesh)
    data, plan, _ = prepared(args, held, mesh)
    if args.task is None:
        folder.check_data(args.workdir, len(held.stages) - 1, folder.text(data))
    step, params = session.parameters(args, held, plan.abstract.params)
    evaluation, found = make_eval(plan.build, plan.objective, plan.seed), {}
    with jax.set_mesh(mesh):
        for name, heldout in data.heldouts.items():
            found[name] = loop.evaluate(plan, evaluation, params, step, heldout(rows_sharding(mesh), plan.rows))
    if args.rows is not None:
        save_rows(args.rows, data, plan, step, params, data.heldouts[VALIDATION](rows_sharding(mesh), plan.rows))
    data.prepare()
    if jax.process_index() == 0:
        print(json.dumps({"step": step} | found.pop(VALIDATION) | readout.baselines(data) | found))
    return 0


def check(args: argparse.Namespace, held: Experiment) -> list[str]:
    """The numbers that are printed; UserError where this cannot be asked of an experiment. Nothing of a run is read."""
    data, _, names = prepared(args, held, make_mesh(args.mesh))
    return [*names, "records", *readout.baselines(data)]


def rows(args: argparse.Namespace) -> bool:
    """Whether its numbers have rows whatever the run: those of a head have, a run's own loss may couple the rows of a batch."""
    return args.head is not None


def prepared(args: argparse.Namespace, held: Experiment, mesh: Mesh) -> tuple[Data, Plan, list[str]]:
    """What is evaluated, how, and the names of its numbers; traced, so that parts that do not fit together are found before a checkpoint
    is read."""
    data = session.data(args, held) if args.task is None else session.other_data(args, held, args.task)
    rows = args.batch or data.stage.batch
    data.check_rows(rows, "--batch")
    if args.rows is not None and len(data.parts) > 1:
        raise UserError(f"--rows is for one task, {data.task.name} is a mixture: name one of its tasks by --task")
    with session.fitting():
        stage = held.stage(data)
        spec = data.heldout_source.spec
        if args.head is not None:
            stage = dataclasses.replace(stage, objective=scored_by(args.head, stage.build, spec))
        plan = dataclasses.replace(loop.plan_of(stage, mesh, 0 if args.task else held.seed, held.steps), rows=rows, micro=1)
        with jax.set_mesh(mesh):
            state, batch = plan.abstract, loop.abstract_batch(plan, spec)
            sums, metrics, _ = make_eval(plan.build, plan.objective, plan.seed).eval_shape(state.params, batch, state.carry, state.step)
        if args.rows is not None:
            make_rows(plan.build, plan.objective, plan.seed).eval_shape(state.params, batch, state.step)
        return data, plan, sorted({"loss", *sums, *metrics})


def scored_by(head: str, build: Build, spec: loop.Spec) -> Encoding:
    """The masked language model's loss by the head of that name, every scored position in a slot."""
    if lacks := [name for name in ("targets", "weights") if name not in spec]:
        raise UserError(f"--head={head} scores targets, and the data has no {', '.join(lacks)}: name a task of masked tokens by --task")
    heads = {(parts[0], parts[2]) for path in build.keys if (parts := path.split("/"))[1:2] == ["heads"]}
    having = sorted(net for net, name in heads if name == head)
    if len(having) != 1:
        there = ", ".join(f"{name} of {net}" for net, name in sorted(heads)) or "none"
        raise UserError(f"--head={head}: {len(having) or 'no'} networks of the run have it, one must; there is {there}")
    return Encoding([Mlm(spec["tokens"][0][0], head)], having[0])


def save_rows(path: Path, data: Data, plan: Plan, step: int, params: dict[str, jax.Array], batches) -> None:
    """The Sums of every record, {NAME/value, NAME/weight: [R]}, and `document` [R], which rows are of one document (where the records
    tell; else each is its own)."""
    if jax.process_count() > 1:
        raise UserError("--rows is for one process: leave it out, or evaluate in one")
    rows, parts, index = make_rows(plan.build, plan.objective, plan.seed), [], []
    for batch in batches:
        parts.append(jax.device_get(rows(params, batch, jnp.int32(step))))
        index.append(np.asarray(batch["index"]))
    real = (index := np.concatenate(index)) >= 0
    out = {"document": np.array([document_of(data, i) for i in index[real]], np.int64)}
    for name in parts[0]:
        for what in ("value", "weight"):
            out[f"{name}/{what}"] = np.concatenate([np.asarray(getattr(part[name], what), np.float64) for part in parts])[real]
    write_rows(path, out)


def document_of(data: Data, record: int) -> int:
    found = data.validation[record]
    return int(found["document"][0]) if "document" in found else int(record)


def write_rows(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Whole or not at all."""
    partial = path.with_name(f"{path.name}{folder.PARTIAL}")
    with on_disk(path):
        with partial.open("wb") as file:
            np.savez(file, **arrays)
        partial.replace(path)
