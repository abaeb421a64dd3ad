"""A work folder: one training run at a time, of one configuration, on one text and vocabulary."""
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import socket
from collections.abc import Iterator, Sequence

import numpy as np
from etils import epath

from ptmjax.cli import config
from ptmjax.cli.experiment import Data, Kept
from ptmjax.cli.places import PARTIAL, whole
from ptmjax.data.records import SPLITS
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.training.checkpoint import Checkpoints
from ptmjax.types import UserError, short

DATA = "data.json"
VOCABULARY = "vocabulary"  # with the ending of the file that it is a copy of
FILE = "vocabulary_file"  # of data.json: the name of that copy
LOCK = "train.lock"
FREE = ("STEPS", "STEPS_SHORT", "STEPS_LONG", "Stage.steps", "Stage.micro", "Experiment.mesh", "Experiment.fsdp", "Experiment.compute",
        "Experiment.keep", "Experiment.best", "Experiment.every", "Every.log", "Every.evaluate", "Every.save", "Every.nonfinite",
        "Stack.remat", "Stack.loop", "Stack.sequence", "Block.kernel", "T5Block.kernel",  # how it is computed, not what
        "Own.paths", "Own.vocabulary")  # what is in those, data.json tells


# ------------------------------------------------------------------ which data
def described(data: Data) -> dict:
    """What decides the rows that a stage is trained on: its text(), and, for the corruption's own numbers and code, what the
    first rows came out as."""
    return text(data) | {"examples": sample(data)}


def text(data: Data) -> dict:
    """The keys of both splits in the cache (text, cut, holdout), the vocabulary, shapes; of a mixture, a key a task, and their rates."""
    rows = {name: f"{kind}{list(shape)}" for name, (shape, kind) in sorted(data.source.spec.items())}
    of = {split: [getattr(part, name).folder.name for part in data.parts] for split, name in (("train", "training"), ("validation",) * 2)}
    mixed = {"rates": {name: round(share, 9) for name, share in data.shares.items()}} if len(data.parts) > 1 else {}
    return {"task": data.task.name, **{split: names if mixed else names[0] for split, names in of.items()},
            "vocabulary": data.task.vocabulary.fingerprint, "rows": rows, **mixed}


def sample(data: Data, rows: int = 8) -> str:
    """A digest of the first training examples: another rate, span length or version of a corruption gives others."""
    examples = data.source.examples(np.arange(rows))
    return hashlib.sha256(b"".join(np.ascontiguousarray(examples[name]).tobytes() for name in sorted(examples))).hexdigest()[:16]


MEANING = {"task": "task", "train": "training records (text, cut or holdout)", "validation": "validation records (text, cut or holdout)",
           "vocabulary": "vocabulary", "rows": "row length or columns", "rates": "rates of the mixture",
           "examples": "corruption (its numbers or its code)"}


def saved_data(workdir: epath.Path) -> list[dict]:
    """Of every stage what described() gave; [] for a run that has not saved it."""
    path = workdir / DATA
    try:
        found = json.loads(path.read_text()) if path.exists() else []
    except (OSError, ValueError) as e:
        raise UserError(f"{path} cannot be read ({e}): delete it, `ptmjax train` writes it again") from e
    if not isinstance(found, list) or not all(isinstance(stage, dict) for stage in found):
        raise UserError(f"{path} is not a list of stages: delete it, `ptmjax train` writes it again")
    return found


def kept(workdir: epath.Path, stage: int) -> Kept:
    """What the work folder knows of the data of a stage."""
    found = dict(enumerate(saved_data(workdir))).get(stage, {})
    listed = lambda x: [name for name in (x if isinstance(x, list) else [x]) if isinstance(name, str)]
    file = workdir / (*listed(found.get(FILE)), "none")[0]
    return Kept(str(file) if file.is_file() else None, {split: listed(found[split]) for split in SPLITS if split in found})


def check_data(workdir: epath.Path, stage: int, now: dict) -> None:
    """UserError where what `now` tells of a stage (all of described(), or a part) is not what the run was trained on."""
    before = saved_data(workdir)
    if stage >= len(before):
        return
    for name, value in now.items():
        if name in before[stage] and before[stage][name] != value:
            raise UserError(f"{workdir} holds a run on other data, its {MEANING[name]} changed ({short(before[stage][name])} -> "
                            f"{short(value)}): put back what task {before[stage].get('task')!r} was, or train in another folder")


def check_vocabulary(workdir: epath.Path, data: Data, stage: int) -> None:
    """check_data of what a command needs that reads no text."""
    check_data(workdir, stage, {"task": data.task.name, "vocabulary": data.task.vocabulary.fingerprint})


# ------------------------------------------------------------------ whose folder
@contextlib.contextmanager
def locked(workdir: epath.Path) -> Iterator[None]:
    """Alone in the folder, or a UserError. The kernel gives the lock back whatever ends the process (kill -9 too); where the
    file system has none (gs://, some network disks) the run goes on without."""
    if "://" in str(workdir):
        yield
        return
    with open(workdir / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            file.seek(0)
            raise UserError(f"--workdir {workdir}: another `ptmjax train` ({file.read().strip() or 'just started'}) is at work there: wait "
                            "for its end, or name another folder") from e
        except OSError:
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def take(workdir: epath.Path, data: Sequence[dict], vocabulary: Vocabulary, steps: int) -> tuple[contextlib.ExitStack, list[str]]:
    """Makes the work folder this run's, and gives the lock on it, to be closed at the end, and what changed since the last call
    (config.same_run); a UserError where it is something else's, or stands beyond `steps`. An earlier configuration is kept beside.

    data: described() of every stage.
    """
    with contextlib.ExitStack() as held:
        try:
            check_is_run(workdir)
            workdir.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(workdir))
            changed = config.same_run(workdir)
            check_settings(workdir)
            for number, stage in enumerate(data):
                check_data(workdir, number, stage)
            if (done := max(Checkpoints(workdir / "checkpoints").steps(), default=0)) > steps:
                raise UserError(f"--workdir {workdir} stands at step {done}, the present settings end at {steps}: "
                                f"give at least {done} steps, or name another folder")
            write(workdir, data, vocabulary, bool(changed))
        except OSError as e:
            raise UserError(f"--workdir {workdir} cannot be used ({e.strerror or e}): name another folder") from e
        return held.pop_all(), changed


def check_settings(workdir: epath.Path) -> None:
    """UserError where the folder holds a run of other settings than the present ones."""
    if other := config.same_run(workdir, FREE):
        shown = "; ".join(other[:3])
        raise UserError(f"--workdir {workdir} holds another run ({shown}): name another folder, or keep its settings")


def check_is_run(workdir: epath.Path) -> None:
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"--workdir {workdir} is a file: name a folder")
    there = {p.name for p in workdir.iterdir()} if workdir.is_dir() else set()
    if config.SAVED not in there and not {DATA, "checkpoints"} <= there and there - {f"{config.SAVED}{PARTIAL}", LOCK}:
        raise UserError(f"--workdir {workdir} holds files that are no ptmjax run: name a new or empty folder")


def write(workdir: epath.Path, data: Sequence[dict], vocabulary: Vocabulary, keep: bool) -> None:
    """config.gin, the earlier one beside it where it is to be kept, what it is trained on, and a copy of the vocabulary's file."""
    if keep:
        there = {p.name for p in workdir.iterdir()}
        (workdir / config.SAVED).copy(workdir / next(name for n in itertools.count(1) if (name := f"config.{n}.gin") not in there))
    config.save(workdir)
    copied = {}
    if (file := vocabulary.file) is not None:
        ending, content = file
        copied[FILE] = f"{VOCABULARY}{ending}"
        whole(workdir / copied[FILE], content)
    whole(workdir / DATA, (json.dumps([stage | copied for stage in data], indent=1) + "\n").encode())
