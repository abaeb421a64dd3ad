"""An experiment as a gin file names it: networks, stages, optimizer, mesh; and its parts as the trunk wants them."""
import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import ptmjax.tasks  # noqa: F401  registers them
from ptmjax.cli.own import Own
from ptmjax.cli.part import Part
from ptmjax.data import loader, order, registry
from ptmjax.data.records import Records
from ptmjax.data.task import Mixture, Task
from ptmjax.objectives.base import Objective
from ptmjax.parallel.distributed import first_alone
from ptmjax.training import loop
from ptmjax.training.build import Build
from ptmjax.training.loop import Every, Optimizer
from ptmjax.training.state import FSDP
from ptmjax.types import INT32, UserError, at_least, at_most, one_of

VALIDATION = "validation"  # what is held out, as a whole

def physical_memory(limits: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of this machine, or what a container or batch system leaves this process of them (control groups, versions 2 and 1)."""
    found, groups = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")], [Path()]
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
        groups += [Path(path.strip("/")) for _, kinds, path in lines if kinds in ("", "memory")]
    for at in {above for group in groups for above in (group, *group.parents)}:
        for file in (limits / at / "memory.max", limits / "memory" / at / "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
                found.append(int(file.read_text()))
    return min(found)


@dataclass(frozen=True)
class Stage:
    """One part of a run. task: a name in data/registry.py, of a task or a mixture; corruption and readout None: the task's own;
    streams: rows go on from batch to batch (for objectives with carry); heldout: how many validation records (of each task) are
    evaluated, None all; dupe_factor: in how many ways a training record is corrupted (BERT's static masks), None afresh in every epoch."""

    task: str
    objective: Objective
    steps: int
    batch: int
    micro: int = 1
    frozen: Sequence[str] = ()
    corruption: Callable | None = None
    readout: Callable | None = None
    streams: bool = False
    heldout: int | None = None
    dupe_factor: int | None = None

    def __post_init__(self):
        at_least(1, steps=self.steps, batch=self.batch, micro=self.micro)
        at_most(INT32, steps=self.steps, batch=self.batch)
        given = {"heldout": self.heldout, "dupe_factor": self.dupe_factor}
        at_least(1, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Experiment:
    """networks: name -> factory taking `key`. ties: path or prefix -> the path that owns it. mesh: "data=4,model=2". fsdp: what the
    mesh's axis of that name divides, "parameters" and the optimizer's state, or the "optimizer" state alone: parameters are then gathered
    once a step, not by every micro-batch, and lie whole on each device.

    keep: how many of the newest checkpoints stay. best: a number held out, such as "validation/loss", whose best evaluated step stays
    as well (of all stages: give it to runs whose stages can be compared); names that end in accuracy, auc or f1 are better the higher.
    init_from: the folder of a published model (config.json, model.safetensors), or the work folder of another run, whose parameters a
    new run begins with. renames: of a work folder, path or prefix of ours -> theirs, with layers of a stack where "[::2]" or "[0,2,4]"
    stands behind; "" begins anew.
    own: the text that takes the place of every stage's.
    """

    networks: Mapping[str, Callable]
    stages: Sequence[Stage]
    optimizer: Optimizer
    ties: Mapping[str, str] = field(default_factory=dict)
    mesh: str = ""
    fsdp: str = "parameters"
    seed: int = 0
    compute: str = "float32"
    every: Every = Every()
    keep: int = 2
    best: str | None = None
    init_from: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    own: Own | None = None

    def __post_init__(self):
        if not callable(getattr(self.optimizer, "transform", None)):
            raise UserError(f"Experiment.optimizer is {self.optimizer!r}: bind one of training/optimizer.py, such as @optimizer.AdamW()")
        if not isinstance(self.every, Every):
            raise UserError(f"Experiment.every is {self.every!r}: bind @loop.Every()")
        if self.init_from == "":
            raise UserError("Experiment.init_from names no folder: give that of a published model or of a run, or None")
        if self.renames and self.init_from is None:
            raise UserError("Experiment.renames says from where parameters come, and there is no Experiment.init_from: give both or none")
        one_of("fsdp", self.fsdp, FSDP)
        at_least(1, keep=self.keep, stages=len(self.stages))
        at_most(INT32, steps=self.steps)
        at_least(0, seed=self.seed)
        at_most(2**32 - 1, seed=self.seed)

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return sum(stage.steps for stage in self.stages)

    def build(self, stage: Stage) -> Build:
        return Build(self.networks, self.ties, stage.frozen, self.compute)

    def data(self, cache: Path) -> list["Data"]:
        """Of each stage; nothing is read yet."""
        size = functools.cache(lambda: vocabulary_size(self.build(self.stages[0])))
        on = (lambda task, kept: self.own.task(task, size(), cache, kept)) if self.own else None
        return [Data(stage, self.seed, cache, number, on) for number, stage in enumerate(self.stages)]

    def stage(self, data: "Data") -> loop.Stage:
        """A stage as the loop wants it; what the cache lacks is built when it first reads."""
        stage = data.stage
        return loop.Stage(self.build(stage), stage.objective, self.optimizer, data.batches, stage.steps, stage.batch, stage.micro,
                          data.heldouts, self.fsdp)


def vocabulary_size(build: Build) -> int:
    """How many ids the smallest table over a vocabulary has; 0 where there is none."""
    return min((leaf.sizes[leaf.lead] for leaf in build.leaves.values() if "vocab" in leaf.names), default=0)


class Kept(NamedTuple):
    """What a work folder knows of a stage's data, so that its model can be used when the text is gone or another."""

    vocabulary: str | None = None  # a file
    records: Mapping[str, Sequence[str]] = {}  # split -> names of the folders in the cache, one a task


@dataclass(frozen=True)
class Data:
    """A stage's data: records of its task, or of those of its mixture, from the cache, in the order and corruption of the run.

    number: of the stage, from 0. It is folded into the seed of order and corruption, so that two stages on one task read other
    batches and other masks; the first stage's are those of the seed alone. Held-out examples are the same in all stages.
    on: gives the registered task another text (Own.task). kept: of a run that is read.
    """

    stage: Stage
    seed: int
    cache: Path
    number: int = 0
    on: Callable[[Task, str | None], Task] | None = None
    kept: Kept = Kept()

    @functools.cached_property
    def task(self) -> Task | Mixture:
        task, kept = registry.read(self.stage.task), self.kept.vocabulary
        if self.on is None:
            return task.at(kept) if kept else task
        first_alone(lambda: self.on(task, kept), "the vocabulary")  # which is then in the cache
        return self.on(task, kept)

    @functools.cached_property
    def parts(self) -> list[Part]:
        """One a task."""
        tasks, stage, seed = self.task.tasks, self.stage, self.seeds[0]
        if stage.streams and len(tasks) > 1:
            raise UserError(f"Stage.streams: the rows of {self.task.name!r}, a mixture, do not go on from batch to batch: name one "
                            "task, or leave streams out")
        walk = (lambda n: order.Streams(n, stage.batch, seed)) if stage.streams else (lambda n: order.Shuffled(n, seed))
        kept = [{split: names[i] for split, names in self.kept.records.items() if len(names) == len(tasks)} for i in range(len(tasks))]
        corruption = lambda task: stage.corruption or task.corruption
        readout = lambda task: stage.readout or task.readout or corruption(task)
        return [Part(task, corruption(task), readout(task), walk, self.seeds, self.cache, stage.dupe_factor, names)
                for task, names in zip(tasks, kept)]

    @property
    def seeds(self) -> tuple[int, int]:
        """Of training, and of what is held out."""
        return self.seed + (self.number << 32), self.seed  # Experiment.seed has 32 bits, order.py takes 64

    @property
    def features(self) -> Sequence[str]:
        """The keys of the corruption of training."""
        return self.parts[0].corruption.features

    # ------------------------------------------------------------------ records
    @functools.cached_property
    def training(self) -> Records | loader.Joined:
        return self.joined([part.training for part in self.parts])

    @functools.cached_property
    def validation(self) -> Records | loader.Joined:
        return self.joined([part.validation for part in self.parts])

    def joined(self, records: list[Records]) -> Records | loader.Joined:
        return records[0] if len(records) == 1 else loader.Joined(records)

    def prepare(self) -> None:
        """All splits, built where they lack. To be called on all processes: they wait for each other."""
        for part in self.parts:
            part.training, part.validation  # noqa: B018

    @property
    def shares(self) -> dict[str, float]:
        """Of each task, of the rows of training."""
        return dict(zip((part.task.name for part in self.parts), self.task.shares([len(part.training) for part in self.parts])))

    # ------------------------------------------------------------------ rows
    @functools.cached_property
    def source(self) -> loader.Source:
        sources = [part.source for part in self.parts]
        walk = lambda: order.Mixed(tuple(len(s.records) for s in sources), tuple(self.shares.values()), self.seeds[0])
        return sources[0] if len(sources) == 1 else loader.Mixed(sources, walk(), self.task.name)

    @functools.cached_property
    def heldout_source(self) -> loader.Source:
        """Every record held out, one task after the other."""
        sources = [part.heldout_source for part in self.parts]
        return sources[0] if len(sources) == 1 else loader.Mixed(sources, order.Sequential(len(self.validation)), self.task.name)

    @property
    def spec(self) -> loop.Spec:
        """Shapes and types of a row of training, for which neither text nor cache is read."""
        return loader.agreed(self.task.name, {part.task.name: part.spec for part in self.parts})

    def batches(self, sharding, rows: int, begin: int):
        return loader.batches(self.source, rows, sharding, begin)

    @property
    def heldouts(self) -> dict[str, loop.Heldout]:
        """Of a mixture, each task by itself; and all that is held out. What is held out of a task is so evaluated twice: sums of all
        are not known from the means of each."""
        of = lambda part: lambda sharding, rows: loader.evaluation(part.heldout_source, rows, sharding, self.stage.heldout,
                                                                  streams=self.stage.streams)
        alone = {f"{VALIDATION}/{part.task.name}": of(part) for part in self.parts}
        pooled = lambda sharding, rows: itertools.chain.from_iterable(one(sharding, rows) for one in alone.values())
        return (alone if len(alone) > 1 else {}) | {VALIDATION: pooled}

    # ------------------------------------------------------------------ checks
    def check_vocabulary(self, build: Build) -> None:
        """UserError where a parameter over a vocabulary has fewer entries than the task's: ids beyond would be read as the last."""
        size = self.task.vocabulary.size
        for name, leaf in build.leaves.items():
            if "vocab" in leaf.names and (has := leaf.sizes[leaf.lead]) < size:
                raise UserError(f"{name} is for {has} ids, the vocabulary of {self.task.name} has {size}: raise its size (V)")

    def check_rows(self, rows: int, what: str = "Stage.batch") -> None:
        """UserError where this process' share of a batch is larger than the memory of its machine."""
        row = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in self.source.spec.values())
        there = physical_memory()
        if rows // jax.process_count() * row > there:
            raise UserError(f"{what} is {rows}; its rows of {row} bytes are more than the memory of this machine "
                            f"({there / 2**30:.0f} GiB): lower it")

    def told(self) -> str:
        """What the cache says of its tasks (Part.told); of a mixture also their shares of the rows of training."""
        lines = [part.told() for part in self.parts]
        if len(lines) > 1:
            lines = [f"{self.task.name}: " + ", ".join(f"{share:.1%} {name}" for name, share in self.shares.items()), *lines]
        return "\n".join(lines)
