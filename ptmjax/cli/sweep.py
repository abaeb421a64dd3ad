"""ptmjax sweep: variants of a run, each with several seeds, and the readouts that make them comparable.

Every run is `ptmjax train` and every readout a command of its own, in a process of its own, one after another: one that ends badly harms
no other. What is done lies in the folders of the runs, so that the same command goes on wherever it was stopped.
"""
import argparse
import dataclasses
import fcntl
import importlib
import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
from etils import epath
from rich.console import Console

from ptmjax.cli import comparison, config, folder, main, places, session, train, variants
from ptmjax.cli.children import Children
from ptmjax.cli.experiment import Experiment
from ptmjax.cli.paired import Sums
from ptmjax.cli.variants import Readout, Run, Sweep
from ptmjax.training import interrupt
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.types import UserError, at_least

HELP = "train the variants of a sweep file with several seeds, read all of them out alike, and compare them in a table"
EXAMPLES = """
ptmjax sweep sweeps/masking_rate.gin --workdir=runs/rates --dry_run                # check all variants, tell their commands
ptmjax sweep sweeps/masking_rate.gin --workdir=runs/rates --seeds=2 --gin.STEPS=400    # the same command goes on after whatever stopped it
ptmjax sweep sweeps/masking_rate.gin --workdir=runs/rates --jobs=jobs.txt          # a command line a run, for a cluster
"""
DONE = "sweep.json"  # of a run's folder: with which command it was completed, and at which step
READOUTS = "readouts"  # folder of a run: NAME.json, NAME.npz


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", metavar="FILE", help="a sweep file: as given, or one of the shipped folder")
    parser.add_argument("--workdir", required=True, type=places.here, metavar="FOLDER", help="a folder a run, and the table")
    parser.add_argument("--seeds", type=int, metavar="N", help="in place of the file's")
    session.add_cache(parser)
    parser.add_argument("--dry_run", action="store_true", help="check every variant and readout, tell the commands, and train nothing")
    parser.add_argument("--print", action="store_true", help="only print the command line of every run that is not done")
    parser.add_argument("--jobs", type=places.here, metavar="FILE", help="only write these command lines to a file")
    parser.set_defaults(gin_bindings=[])
    parser.epilog = "--gin.NAME=VALUE is for the runs, and wins over what the variants say: --gin.STEPS=400 (docs/sweeps.md)"


def run(args: argparse.Namespace) -> int:
    sweep = load(args.sweep)
    if args.seeds is not None:
        at_least(1, **{"--seeds": args.seeds})
        sweep = dataclasses.replace(sweep, seeds=args.seeds)
    args.workdir = args.workdir.absolute()
    runs, readouts = variants.runs(sweep, args.workdir, args.gin_bindings), variants.readouts(sweep)
    if args.dry_run or args.print or args.jobs:
        return planned(args, runs, readouts)
    with Children() as children:  # this process leaves the devices to them
        if code := children.heard(["sweep", args.sweep, f"--workdir={args.workdir}", f"--cache={args.cache}", f"--seeds={sweep.seeds}",
                                   *(f"--gin.{binding}" for binding in args.gin_bindings), "--dry_run"])[0]:
            return code
        codes = [done(children, args, readouts, run, f"run {number} of {len(runs)}") for number, run in enumerate(runs, 1)]
    stopped = [code for code in codes if code in STOPPED]
    if stopped:
        main.say("the sweep is stopped: the same command goes on")
        return stopped[0]
    tell(args, sweep, runs, readouts)
    failed = {run.folder.name: code for run, code in zip(runs, codes) if code}
    for name, code in failed.items():
        main.say(f"{name} ended with code {code} and is {comparison.MISSING}: mend what it said above, the same command tries it again")
    return next((code for code in failed.values() if code in (1, 2)), next(iter(failed.values()), 0))


def load(name: str) -> Sweep:
    """The sweep of a file. No device is looked for."""
    config.load([name], what="sweep")
    sweep = config.configured(Sweep)()
    config.check_used()
    return sweep


# ------------------------------------------------------------------ before anything is trained
def planned(args: argparse.Namespace, runs: Sequence[Run], readouts: Sequence[Readout]) -> int:
    """Checks everything; then tells, prints or writes the commands of the runs that are not done."""
    check(args, runs, readouts)
    lines = [shlex.join(["ptmjax", *run.words(args.cache)]) for run in runs if not is_done(run, args.cache)]
    if args.jobs:
        with comparison.on_disk(epath.Path(args.jobs)):
            args.jobs.write_text("".join(f"{line}\n" for line in lines))
        print(f"{args.jobs}: {len(lines)} runs; when they are done, `ptmjax sweep` without --jobs reads them out")
        return 0
    if args.dry_run:
        print(f"{len(runs)} runs, {len(lines)} of them not done, each read out as {', '.join(readout.name for readout in readouts)}")
    if lines:
        print("\n".join(lines))
    return 0


def check(args: argparse.Namespace, runs: Sequence[Run], readouts: Sequence[Readout]) -> None:
    """Builds and traces every variant, and every readout of it, and holds folders that are there to them: any fault of the sweep is one
    line before the first step."""
    for readout in readouts:
        command(readout, runs[0].folder, args.cache)
    seen: set[str] = set()
    for run in runs:
        again = (run.folder / config.SAVED).is_file() and not is_done(run, args.cache)
        if run.variant in seen and not again:
            continue
        try:
            experiment = built(args, run)
            if again:
                folder.check_settings(epath.Path(run.folder))
            for readout in readouts if run.variant not in seen else ():
                check_readout(readout, *command(readout, run.folder, args.cache), experiment)
        except UserError as e:
            raise UserError(f"variant {run.variant!r}: {e}") from e
        seen.add(run.variant)


def built(args: argparse.Namespace, run: Run) -> Experiment:
    """The experiment as `ptmjax train` makes it before its first step."""
    experiment = session.experiment(run.files, run.bindings)
    about = SimpleNamespace(cache=args.cache, workdir=epath.Path(run.folder), dry_run=False)
    train.prepared(about, experiment, Console(quiet=True))
    config.check_used()
    return experiment


def command(readout: Readout, at: Path, cache: Path) -> tuple[ModuleType, argparse.Namespace]:
    """The module of a readout's command, and its options for the work folder `at`.

    Such a module has check(options, experiment) -> the numbers that it prints, and where some of these have rows, which it then writes to
    --rows=FILE (eval.write_rows), rows(options), which says whether they have.
    """
    name, *words = readout.words
    known = main.commands()
    try:
        if name not in known:
            raise main.Usage(f"no command {name!r}; see ptmjax --help")
        module = importlib.import_module(f"ptmjax.cli.{name}")
        if not hasattr(module, "check"):
            raise main.Usage(f"{name} is no readout: it prints no numbers of a work folder as JSON")
        parser = main.parser_of(name, module, known[name])
        return module, main.options(parser, [*words, f"--workdir={at}", f"--cache={cache}"])
    except main.Usage as e:
        raise UserError(f"readout {readout.name!r}: {e}") from e


def check_readout(readout: Readout, module: ModuleType, parsed: argparse.Namespace, experiment: Experiment) -> None:
    try:
        known = list(module.check(parsed, experiment))
    except UserError as e:
        raise UserError(f"readout {readout.name!r}: {e}") from e
    if unknown := [number for number in readout.numbers if number not in known]:
        raise UserError(f"readout {readout.name!r} has no number {unknown[0]!r}: it may be one of {', '.join(sorted(known))}")


# ------------------------------------------------------------------ a run and its readouts
STOPPED = (interrupt.CODE, interrupt.TERMINATED)


def done(children: Children, args: argparse.Namespace, readouts: Sequence[Readout], run: Run, which: str) -> int:
    """Trains what is not trained and reads out what is not read out; the first exit code that is not 0. Nothing after a signal."""
    if children.asked:
        return interrupt.TERMINATED
    if not is_done(run, args.cache):
        print(f"{which}: {run.folder.name}", flush=True)
        awaited(run.folder)
        if code := children.run(run.words(args.cache)):
            return code
        write(run.folder / DONE, {"words": run.words(args.cache), "step": newest(run.folder)})
    codes = [read_out(children, args, readout, run) for readout in readouts if taken(readout, run) is None]
    return next(filter(None, codes), 0)


def newest(at: Path) -> int:
    """The newest checkpoint's step, 0 where there is none."""
    return max(Checkpoints(epath.Path(at) / "checkpoints").steps(), default=0)


def is_done(run: Run, cache: Path) -> bool:
    """Whether the run was completed by the present command. Any other work folder is `ptmjax train`'s to judge."""
    return known(run.folder / DONE) == {"words": run.words(cache), "step": newest(run.folder)}


def awaited(at: Path) -> None:
    """Waits for a training that is at work there, as of a sweep that was killed: its run goes on, and what it does need not be done."""
    if not (at / folder.LOCK).is_file():
        return
    with (at / folder.LOCK).open("r+") as file:
        for turn in range(1 << 62):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if turn == 0:
                    print(f"{at}: a `ptmjax train` is at work there, which is waited for", flush=True)
                time.sleep(1)
            except OSError:  # a file system without locks
                return


def read_out(children: Children, args: argparse.Namespace, readout: Readout, run: Run) -> int:
    """Takes one readout of a run and keeps it in the run's folder."""
    if children.asked:
        return interrupt.TERMINATED
    at, step = run.folder / READOUTS, newest(run.folder)
    at.mkdir(exist_ok=True)
    print(f"{run.folder.name}: {readout.name}", flush=True)
    module, parsed = command(readout, run.folder, args.cache)
    rows = [f"--rows={at / readout.name}.npz"] if hasattr(module, "rows") and module.rows(parsed) else []
    code, said = children.heard([*readout.words, f"--workdir={run.folder}", f"--cache={args.cache}", *rows])
    if code == 0:
        write(at / f"{readout.name}.json", {"words": readout.words, "newest": step, "numbers": json.loads(said.splitlines()[-1])})
    return code


def taken(readout: Readout, run: Run) -> dict | None:
    """The numbers of a readout that was taken, by this command and of the checkpoint that is the newest; else None."""
    found = known(run.folder / READOUTS / f"{readout.name}.json")
    return found["numbers"] if found and (found["words"], found["newest"]) == (readout.words, newest(run.folder)) else None


def known(path: Path) -> dict | None:
    """What lies in a file of JSON that this command has written; None where it is not whole: it is then made anew."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"words"} < found.keys() else None


def write(path: Path, what: dict) -> None:
    with comparison.on_disk(epath.Path(path)):
        folder.whole(epath.Path(path), (json.dumps(what) + "\n").encode())


# ------------------------------------------------------------------ the table
def tell(args: argparse.Namespace, sweep: Sweep, runs: Sequence[Run], readouts: Sequence[Readout]) -> None:
    numbers = [compared(sweep, runs, readout, name, args.cache) for readout in readouts for name in readout.numbers]
    args.workdir.mkdir(parents=True, exist_ok=True)
    written = comparison.write(epath.Path(args.workdir), f"{Path(args.sweep).name}: {', '.join(sweep.variants)}", numbers)
    for one in numbers:
        Console(soft_wrap=True).print(comparison.shown(one))
    print("\n".join(map(str, written)))


def compared(sweep: Sweep, runs: Sequence[Run], readout: Readout, name: str, cache: Path) -> comparison.Number:
    values: dict[str, dict[int, float | None]] = {variant: {} for variant in sweep.variants}
    rows: dict[str, dict[int, Sums]] = {variant: {} for variant in sweep.variants}
    for run in runs:
        found = taken(readout, run) if is_done(run, cache) else None
        values[run.variant][run.seed] = None if found is None else found.get(name)
        if found is not None and (sums := sums_of(run.folder / READOUTS / f"{readout.name}.npz", name)) is not None:
            rows[run.variant][run.seed] = sums
    return comparison.number(readout.name, name, values, rows)


def sums_of(path: Path, name: str) -> Sums | None:
    """Of the rows that a readout wrote; None where it wrote none of this number."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as held:
        if f"{name}/value" not in held:
            return None
        return Sums.of(held["document"], held[f"{name}/value"], held[f"{name}/weight"])
