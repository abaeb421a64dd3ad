"""What the commands share: options, folders, the start of a run, and the experiment that a work folder holds."""
import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from etils import epath

import ptmjax
from ptmjax.cli import config, folder, places
from ptmjax.cli.experiment import Data, Experiment, Kept
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.parallel import distributed
from ptmjax.training.build import Build
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.types import Batch, UserError


def add_workdir(parser: argparse.ArgumentParser, help: str = "folder of the run: configuration, checkpoints, metrics") -> None:
    parser.add_argument("--workdir", required=True, type=places.anywhere, metavar="FOLDER", help=help)


def add_cache(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("PTMJAX_CACHE", str(Path.home() / ".cache" / "ptmjax"))
    parser.add_argument("--cache", type=places.here, default=default, metavar="FOLDER",
                        help="where prepared data lies (default: %(default)s)")


def add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", metavar="N", help='a checkpoint other than the newest: its step, or "best" (of Experiment.best)')


def add_processes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a run of several processes")
    group.add_argument("--distributed", action="store_true", help="join the processes that the cluster tells of (TPU pod, SLURM, GKE)")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="join by hand: the address of process 0, the same for all")
    group.add_argument("--processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process", type=int, metavar="I", help="the number of this one, from 0")


def join(args: argparse.Namespace) -> None:
    distributed.start(args.coordinator, args.processes, args.process, args.distributed)


def experiment(files: list[str], bindings: list[str], more: str = "") -> Experiment:
    """The experiment of gin files and --gin. bindings; more: lines of gin (config.load)."""
    check_devices()
    if not files:
        raise UserError("no --gin_file: name one, `ptmjax list` shows those that are shipped")
    config.load(files, bindings, more)
    with fitting():
        return config.configured(Experiment)()


def check_devices() -> None:
    """UserError where the devices that JAX_PLATFORMS asks for are not there."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as e:  # the latter, without a word, where it knows the name and lacks the package
        asked, why = os.environ.get("JAX_PLATFORMS", ""), (str(e).splitlines() or ["no package of jax for them is installed"])[0]
        raise UserError(f"JAX_PLATFORMS={asked}: jax finds no such devices ({why[:200]}): leave it out, or install jax for them "
                        '(pip install -e ".[cuda]" or ".[tpu]")') from e


@contextlib.contextmanager
def fitting() -> Iterator[None]:
    """Around what is built and traced before any folder is made: parts that do not fit together are a UserError that says where."""
    try:
        yield
    except UserError as e:
        raise config.blamed(e) from e
    except (TypeError, ValueError, RecursionError, KeyError, IndexError, AttributeError, OverflowError) as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if f"{os.sep}ptmjax{os.sep}" in f.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        fault = f"{type(e).__name__}: {e}".splitlines()[0]
        raise UserError(f"the parts of this configuration do not fit together, at {where}: {fault} (PTMJAX_TRACEBACK=1 shows more)") from e


def saved(workdir: epath.Path) -> Experiment:
    """The experiment whose run lies in the work folder."""
    path = workdir / config.SAVED
    if not path.is_file():
        raise UserError(f"{workdir} holds no run (there is no {config.SAVED} in it): train one with `ptmjax train --gin_file=...`")
    kernels = [key for key in config.saved_keys(workdir) if key.endswith("Block.kernel")]
    return experiment([str(path)], [f"{key}='auto'" for key in kernels])  # those of the devices that trained may not be here


def data(args: argparse.Namespace, held: Experiment) -> Data:
    """The last stage's data, with what the work folder keeps of them; UserError where the vocabulary is not the one that the run in it
    was trained with."""
    last = len(held.stages) - 1
    found = dataclasses.replace(held.data(args.cache)[-1], kept=folder.kept(args.workdir, last))
    folder.check_vocabulary(args.workdir, found, last)
    return found


def other_data(args: argparse.Namespace, held: Experiment, task: str) -> Data:
    """Another task in the place of the last stage's, whose seed is 0 whatever the run's: of all runs of one vocabulary it gives the same
    held-out examples. UserError where the vocabulary is another, its ids would mean other pieces."""
    own = data(args, held)
    stage = dataclasses.replace(own.stage, task=task, corruption=None, readout=None, streams=False, heldout=None, dupe_factor=None)
    kept = Kept(own.kept.vocabulary) if own.on else Kept()
    found = dataclasses.replace(own, stage=stage, seed=0, number=0, kept=kept)
    if found.task.vocabulary.fingerprint != own.task.vocabulary.fingerprint:
        raise UserError(f"--task={task} has another vocabulary than {own.task.name}, on which the run is trained: name a task of the same")
    return found


def about() -> str:
    """Devices, hosts and versions, in one line."""
    device, packages = jax.devices()[0], ("jax", "flax", "optax", "orbax-checkpoint")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    where = f"{jax.device_count()} x {device.device_kind} ({device.platform}) in {jax.process_count()} process(es)"
    return f"ptmjax {ptmjax.__version__} on {where}; {versions}, Python {platform.python_version()}"


def parameters(args: argparse.Namespace, held: Experiment, like: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[int, dict[str, jax.Array]]:
    """(step, parameters) of the newest checkpoint of the work folder, or that of --step, placed as `like` says."""
    store = Checkpoints(args.workdir / "checkpoints", say=lambda text: print(text, file=sys.stderr), best=held.best)
    found = store.params(like, None if args.step is None else step_of(args.step, store))
    if found is None:
        raise UserError(f"{args.workdir} holds no checkpoint yet: let `ptmjax train` reach its first save")
    return found


def step_of(which: str, store: Checkpoints) -> int:
    """The step that --step names; a UserError that lists those there are."""
    there = store.steps()
    step = store.best_of(there) if which == "best" else int(which) if re.fullmatch("[0-9]+", which) else None
    if step in there:
        return step
    listed = f"{store.folder} holds {', '.join(f'step {n}' for n in there) or 'none'}"
    if which == "best" and store.best is None:
        raise UserError(f"--step=best: the run has no Experiment.best by which one is: train with it, or name a step; {listed}")
    if which == "best":
        raise UserError(f"--step=best: no checkpoint was evaluated for {store.best}: name a step; {listed}")
    raise UserError(f"--step={which} is no checkpoint: name one that is there; {listed}")


def on_one_device(build: Build) -> dict[str, jax.ShapeDtypeStruct]:
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here) for name, leaf in build.leaves.items()}


def check_finite(scores: Iterable[np.ndarray], step: int, workdir: epath.Path) -> None:
    """UserError where a score is not finite."""
    if not all(np.isfinite(x).all() for x in scores):
        raise UserError(f"the scores of step {step} of {workdir} are not finite, the run came apart: lower its rate and train anew")


def symbols(vocabulary: Vocabulary, *names: str) -> list[int]:
    """The ids of the symbols of these names (cls, eos, ...); UserError that says which the vocabulary lacks."""
    if lacks := [name for name in names if getattr(vocabulary, name) is None]:
        raise UserError(f"the vocabulary {vocabulary!r} has no {', '.join(lacks)}, with which this model's input is written: "
                        "train with a vocabulary that has")
    return [getattr(vocabulary, name) for name in names]


def rows(texts: Sequence[str], data: Data, mark: str | None = None, language: int = 0) -> Batch:
    """CLS pieces SEP of every text, padded to the longest, `mark` in a text as MASK: tokens, segments, weights (1 at the masks),
    and types (all 0) and languages where the data have them."""
    v, lists = data.task.vocabulary, []
    cls, sep, pad, *masks = symbols(v, "cls", "sep", "pad", *["mask"] * (mark is not None))
    for text in texts:
        *parts, last = text.split(mark) if mark else [text]
        if v.spaces:  # the space before a mark is part of what is to be found
            parts = [part.removesuffix(" ") for part in parts]
        first, *others = (v.encode(part).tolist() for part in (*parts, last))
        lists.append([cls, *first, *(i for part in others for i in (*masks, *part)), sep])
    tokens, segments = padded(lists, pad)
    out = {"tokens": tokens, "segments": segments, "weights": np.isin(tokens, masks).astype(np.float32)}
    more = {"types": np.zeros_like(tokens), "languages": segments * np.int32(language)}
    return out | {name: x for name, x in more.items() if name in data.features}


def padded(lists: Sequence[Sequence[int]], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and segments, int32 [B, L], of lists of unequal lengths."""
    real = np.arange(max(map(len, lists))) < np.array([[len(ids)] for ids in lists])
    tokens = np.full(real.shape, pad, np.int32)
    tokens[real] = [i for ids in lists for i in ids]
    return tokens, real.astype(np.int32)
