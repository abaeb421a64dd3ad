"""ptmjax train: runs an experiment in a work folder, from where it stands."""
import argparse
import contextlib
import functools
from collections.abc import Callable, Sequence

import jax
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from ptmjax.cli import config, dry_run, folder, own, readout, session
from ptmjax.cli.experiment import Data, Experiment, physical_memory, vocabulary_size
from ptmjax.cli.watchers import Lost, Progress, TensorBoard, Wandb, check_wandb
from ptmjax.convert import partial, published
from ptmjax.nn import kernels
from ptmjax.parallel.distributed import first_alone, of_the_first
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training import loop, memory
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.training.state import Plan, TrainState
from ptmjax.types import UserError

HELP = "train an experiment (a gin file) in a work folder; called again, it goes on or says that it is done"
EXAMPLES = """
ptmjax train --gin_file=bert_demo.gin --workdir=runs/demo                        # the same command goes on after whatever stopped it
ptmjax train --gin_file=bert_demo.gin --workdir=runs/short --gin.STEPS=400       # another value than the file's
ptmjax train --gin_file=bert_base_mlm.gin --data='my/*.txt' --workdir=runs/my    # your own text
ptmjax train --gin_file=bert_base.gin --workdir=runs/base --dry_run              # what it would be
"""
WRITTEN = {
    "curve.png": "the loss curve",
    "summary.json": "the last evaluation and its baselines",
    "metrics.jsonl": "every logged step",
    "checkpoints": "the newest states",
    "tensorboard": "for `tensorboard --logdir`",
    "config.gin": "the whole configuration",
    "data.json": "what data it is trained on",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_arguments(parser)
    session.add_workdir(parser)
    own.add_arguments(parser)
    session.add_cache(parser)
    session.add_processes(parser)
    parser.add_argument("--wandb", metavar="PROJECT", help="show the run in this project of Weights & Biases too (pip install wandb)")
    parser.add_argument("--dry_run", action="store_true", help="build and compile everything, tell its size, and write no run")


def run(args: argparse.Namespace) -> int:
    check_wandb(args.wandb)
    session.join(args)
    console = Console(soft_wrap=True, quiet=jax.process_index() != 0)
    experiment = session.experiment(args.gin_files, args.gin_bindings, own.bindings(args))
    console.print(session.about(), highlight=False)
    with kernels.noting() as noted:
        mesh, data, stages, born = prepared(args, experiment, console)
    config.check_used()
    tell_room(stages[0], data[0], console)
    if args.dry_run:
        return 0
    steps, described = experiment.steps, [folder.described(d) for d in data]
    with contextlib.ExitStack() as held:
        changed: list[str] = []

        def take() -> None:
            lock, now = folder.take(args.workdir, described, data[0].task.vocabulary, steps)
            held.push(lock)
            changed.extend(now)

        first_alone(take, f"--workdir {args.workdir}")
        attention = f", attention by {', '.join(sorted(noted))}" * bool(noted)
        console.print(f"{stages[-1].build.count():,} parameters, mesh {dict(mesh.shape)}{attention}", highlight=False)
        for d in data:  # on all processes: they wait for each other
            console.print(d.told(), highlight=False, markup=False)
        if changed:
            longer = any("steps" in key.partition(":")[0].lower() for key in changed)
            told = " (a rate that falls until the end of the run is another from here on)" * longer
            console.print(f"changed since the last call: {'; '.join(changed)}{told}", highlight=False, markup=False)
        views = {readout.shown_masked(d) for d in data}
        train(args, experiment, mesh, stages, console, born, views.pop() if len(views) == 1 else "")
        if jax.process_index() == 0:
            conclude(args, data[-1], console, steps)
    return 0


def prepared(args: argparse.Namespace, experiment: Experiment, console: Console
             ) -> tuple[Mesh, list[Data], list[loop.Stage], Callable[[Plan], TrainState]]:
    """All parts built and traced, and the text read, before any folder is made; and what makes the state at step 0 (initial)."""
    with session.fitting():
        mesh, data = make_mesh(experiment.mesh), experiment.data(args.cache)
        stages = [experiment.stage(d) for d in data]
        loop.check_rate(stages)
        plans = [loop.plan_of(stage, mesh, experiment.seed, experiment.steps) for stage in stages]
    check_one_vocabulary(data)
    for stage, d in zip(stages, data):
        d.check_vocabulary(stage.build)
    for d in data:  # not among what may not fit: a fault of the disk, of a worker or of memory is told as that
        d.prepare()
    with session.fitting():
        for stage, plan, d in zip(stages, plans, data):
            d.check_rows(stage.rows)
            numbers = loop.rehearse(plan, d.source.spec, d.heldout_source.spec)
        loop.check_best(experiment.best, stages[-1], numbers)
        if args.dry_run:
            dry_run.tell(stages, plans, data, console)
        for plan in plans:
            check_memory(plan)
        return mesh, data, stages, initial(experiment, args.workdir, stages[0], data[0], console)


def check_one_vocabulary(data: Sequence[Data]) -> None:
    """UserError where the stages of a run do not have one vocabulary: they share their tables, and an id would mean another piece."""
    first = data[0].task
    for number, d in enumerate(data, 1):
        if d.task.vocabulary.fingerprint != first.vocabulary.fingerprint:
            raise UserError(f"stage {number} reads {d.task.name!r}, whose vocabulary is not that of {first.name!r}, which stage 1 reads: "
                            "give every stage a task of one vocabulary")


def tell_room(stage: loop.Stage, data: Data, console: Console) -> None:
    """A line where the tables over the vocabulary are much larger than it is."""
    room, has = vocabulary_size(stage.build), data.task.vocabulary.size
    if has < 0.9 * room:
        console.print(f"the tables have {room:,} ids, the vocabulary {has:,}: --gin.V={has} makes a smaller model", highlight=False)


def check_memory(plan: Plan) -> None:
    """UserError where parameters and optimizer alone are more than the devices hold."""
    needed = memory.held(plan.abstract)
    device = jax.local_devices()[0]
    shared = physical_memory() // jax.local_device_count()  # of a CPU, that tells no limit
    limit = (device.memory_stats() or {}).get("bytes_limit") or shared
    if needed > limit:
        raise UserError(f"the parameters and the optimizer's state take {needed / 2**30:.0f} GiB a device, which has {limit / 2**30:.1f}: "
                        "choose smaller sizes, or spread them by Experiment.mesh (fsdp, model)")


def initial(experiment: Experiment, workdir: epath.Path, stage: loop.Stage, data: Data, console: Console) -> Callable[[Plan], TrainState]:
    """What makes the state at step 0; a published model, or another run, is read before any folder is made."""
    begun = Checkpoints(workdir / "checkpoints").steps() if jax.process_index() == 0 else []
    if (where := experiment.init_from) is None or of_the_first(bool(begun), "looking for a run"):
        return Plan.create
    say = lambda text: console.print(text, highlight=False, markup=False)
    if not (epath.Path(where) / partial.FOLDER).exists():
        if experiment.renames:
            raise UserError(f"Experiment.renames is for the work folder of a run, {where} is none: leave it out")
        return functools.partial(published.born, published.initial(where, stage.build, say))
    found = partial.initial(where, stage.build, experiment.renames, say)
    theirs, tables = folder.saved_data(epath.Path(where)), sorted(n for n in found if "vocab" in stage.build.leaves[n].names)
    known = theirs[-1].get("vocabulary") if theirs else None
    if tables and known is None:
        say(f"{where} does not tell its vocabulary (in {folder.DATA}): whether its {tables[0]} means the pieces of {data.task.name} could "
            "not be checked")
    elif tables and known != data.task.vocabulary.fingerprint:
        raise UserError(f"{where} has another vocabulary than {data.task.name}, its {tables[0]} means other pieces: choose a task of its "
                        f"vocabulary, or begin {', '.join(tables)} anew by Experiment.renames, {{{tables[0]!r}: ''}}")
    return functools.partial(published.born, found)


def train(args: argparse.Namespace, experiment: Experiment, mesh, stages: list[loop.Stage], console: Console,
          born: Callable[[Plan], TrainState], how: str) -> None:
    steps = experiment.steps
    say = lambda text: console.print(text, highlight=False, markup=False)
    with contextlib.ExitStack() as stack:
        def watch(done: int) -> list[loop.Watcher]:
            if done >= steps:
                say(f"the run is complete, {done} steps")
                return []
            if done:
                say(f"going on from step {done} of {steps}")
            boards = [TensorBoard(args.workdir / "tensorboard", done)]
            if args.wandb:
                boards.append(Wandb(args.wandb, args.workdir, config.saved_keys(args.workdir), say))
            for board in boards:
                stack.enter_context(contextlib.closing(board))
            return [stack.enter_context(Progress(steps, done, console, how)), *boards, Lost(say)]

        loop.train(stages, args.workdir, mesh, seed=experiment.seed, every=experiment.every, keep=experiment.keep, best=experiment.best,
                   watch=watch, say=say, born=born)


def conclude(args: argparse.Namespace, data: Data, console: Console, steps: int) -> None:
    """What was reached, against what is reached without context, and where everything lies."""
    found, how = readout.summary(args.workdir, data), readout.shown_masked(data)
    readout.curve(args.workdir, found, how)
    said = f"held out at step {steps}:"
    if (step := found["step"]) != steps:
        said = (f"the run stands at step {steps} and was last evaluated at step {step}, which is shown here: "
                f"`ptmjax eval --workdir={args.workdir}` evaluates it")
    console.print(said, highlight=False, markup=False)
    try:
        control = readout.control(config.find(args.gin_files[0], "--gin_file").with_suffix(".control.json"), found)
    except UserError as e:  # the run has succeeded all the same
        control = None
        console.print(str(e), highlight=False, markup=False)
    for table in readout.tables(found, control, how):
        console.print(table)
    for name, what in WRITTEN.items():
        console.print(f"{args.workdir / name}  {what}", highlight=False, markup=False)
