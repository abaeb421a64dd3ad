"""Trains a tiny run in a process of its own, which may send itself a signal (kill -9) at a named point: python train.py WORKDIR
[options]. It answers SIGTERM as the command does.

The points are laid from outside, by replacing a function of the loop, the checkpoints or the files: the product has no hooks.
"""
import argparse
import dataclasses
import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np  # noqa: E402

from ptmjax.parallel import distributed  # noqa: E402
from ptmjax.training import interrupt, loop, metrics  # noqa: E402
from ptmjax.training.checkpoint import Checkpoints  # noqa: E402
from tests.drivers import tiny  # noqa: E402

DONE = [lambda: os.kill(os.getpid(), signal.SIGKILL)]  # what happens at the point


def die() -> None:
    for act in DONE:
        act()


def in_step(at: int) -> None:
    """After step `at` was started, before its result is used."""
    make = loop.make_step

    def made(plan):
        step = make(plan)

        def one(state, batch):
            last = int(state.step) + 1 == at
            out = step(state, batch)
            if last:
                die()
            return out

        one.eval_shape = step.eval_shape
        return one

    loop.make_step = made


def at_rename(at: int, after: bool) -> None:
    """When the folder of checkpoint `at` gets its name: just before, or just after."""
    rename = os.rename

    def renamed(source, target):
        last = os.path.basename(target) == str(at)
        if last and not after:
            die()
        rename(source, target)
        if last:
            die()

    os.rename = renamed


def in_save(at: int) -> None:
    """When step `at` has begun to be written in the background."""
    save = Checkpoints.save

    def saved(store, step, *given):
        save(store, step, *given)
        if step == at:
            die()

    Checkpoints.save = saved


def in_evaluation(at: int) -> None:
    """After the second batch of the evaluation at step `at`."""
    make, seen = loop.make_eval, []

    def made(build, objective, seed):
        evaluate = make(build, objective, seed)

        def one(params, batch, carry, step):
            seen.append(int(step))
            if seen.count(at) == 2:
                die()
            return evaluate(params, batch, carry, step)

        one.eval_shape = evaluate.eval_shape
        return one

    loop.make_eval = made


def in_line(at: int) -> None:
    """With half of the line of step `at` in metrics.jsonl."""
    write = metrics.Lines.write

    def wrote(lines, line):
        if lines.path.name == "metrics.jsonl" and line["step"] == at:
            half = str(line)[: len(str(line)) // 2].replace("'", '"')
            lines.file.write(half)
            lines.file.flush()
            die()
        write(lines, line)

    metrics.Lines.write = wrote


def after_seconds(seconds: float) -> None:
    """So long after the first step."""
    make = loop.make_step

    def made(plan):
        step, timer = make(plan), threading.Timer(seconds, die)

        def one(state, batch):
            out = step(state, batch)
            if not timer.ident:
                timer.start()
            return out

        return one

    loop.make_step = made


def paced(seconds: float) -> None:
    """No step is shorter."""
    make = loop.make_step

    def made(plan):
        step = make(plan)

        def one(state, batch):
            time.sleep(seconds)
            return step(state, batch)

        return one

    loop.make_step = made


def poisoned(stage: loop.Stage, since: int) -> loop.Stage:
    """The stage with weights that are no numbers from step `since` on."""
    def batches(sharding, rows, begin):
        for step, batch in enumerate(stage.batches(sharding, rows, begin), begin + 1):
            yield batch | {"weights": batch["weights"] * (float("nan") if step >= since else 1)}

    return dataclasses.replace(stage, batches=batches)


def lay(point: str, at: str) -> None:
    if point == "nothing":
        pass
    elif point == "step":
        in_step(int(at))
    elif point in ("before_rename", "after_rename"):
        at_rename(int(at), point == "after_rename")
    elif point == "save":
        in_save(int(at))
    elif point == "evaluation":
        in_evaluation(int(at))
    elif point == "line":
        in_line(int(at))
    elif point == "seconds":
        after_seconds(float(at))
    else:
        raise ValueError(f"no such point: {point}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", metavar="FOLDER[:data,fsdp,model[:steps]]", help="one after the other")
    parser.add_argument("--system", choices=("bert", "lstm"), default="bert")
    parser.add_argument("--total", type=int, default=10, help="steps of the whole run")
    parser.add_argument("--kill", nargs=2, metavar=("POINT", "AT"))
    parser.add_argument("--signals", nargs="+", default=["SIGKILL"], help="what is sent then")
    parser.add_argument("--pace", type=float, default=0, metavar="SECONDS", help="at least so long a step")
    parser.add_argument("--poison", type=int, default=0, metavar="STEP", help="from then on no gradient is finite; the run stops after 3")
    parser.add_argument("--join", nargs=3, metavar=("ADDRESS", "PROCESSES", "PROCESS"))
    args = parser.parse_args()
    interrupt.install()
    if args.pace:
        paced(args.pace)
    if args.kill:
        DONE[:] = [functools.partial(os.kill, os.getpid(), signal.Signals[name]) for name in args.signals]
        lay(*args.kill)
    if args.join:
        distributed.start(args.join[0], int(args.join[1]), int(args.join[2]))
    for run in args.runs:
        folder, shape, steps = [*run.split(":"), "", ""][:3]
        stage = tiny.stage(getattr(tiny, args.system), int(steps or args.total), total=args.total)
        every = tiny.EVERY
        if args.poison:
            stage, every = poisoned(stage, args.poison), dataclasses.replace(every, nonfinite=3)
        state = tiny.run([stage], Path(folder), [int(n) for n in (shape or "1,1,1").split(",")], every)
        if not args.join:
            np.savez(Path(folder) / "final.npz", **tiny.arrays(state))
    if args.kill and args.kill[0] == "seconds":
        threading.Event().wait(60)  # a moment that lies past the end of the run


if __name__ == "__main__":
    try:
        main()
    except interrupt.Stopped as stopped:
        print(f"ptmjax: {stopped}")
        sys.stdout.flush()
        interrupt.leave(interrupt.TERMINATED)
