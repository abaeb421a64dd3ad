"""An experiment as a gin file names it: networks, stages, optimizer, mesh; and its parts as the trunk wants them."""
import collections
import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ptmjax.cli import quiet
from ptmjax.cli.own import Own
from ptmjax.data import loader, order
from ptmjax.data.records import Records, build
from ptmjax.data.task import Task
from ptmjax.objectives.base import Objective
from ptmjax.parallel.distributed import first_alone
from ptmjax.training import loop
from ptmjax.training.build import Build
from ptmjax.training.loop import Every, Optimizer
from ptmjax.training.state import FSDP
from ptmjax.types import INT32, UserError, at_least, at_most, one_of


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
    """One part of a run. task: a name in SeqIO's registry; corruption and readout None: the task's own; streams: rows go on
    from batch to batch (for objectives with carry); heldout: how many validation records are evaluated, None all; dupe_factor:
    in how many ways a training record is corrupted (BERT's static masks), None afresh in every epoch."""

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
                          {"validation": data.heldout}, self.fsdp)


def vocabulary_size(build: Build) -> int:
    """How many ids the smallest table over a vocabulary has; 0 where there is none."""
    return min((leaf.sizes[leaf.lead] for leaf in build.leaves.values() if "vocab" in leaf.names), default=0)


class Kept(NamedTuple):
    """What a work folder knows of a stage's data, so that its model can be used when the text is gone or another."""

    vocabulary: str | None = None  # a file
    records: Mapping[str, str] = {}  # split -> name of the folder in the cache


@dataclass(frozen=True)
class Data:
    """A stage's data: records of its task from the cache, in the order and corruption of the run.

    number: of the stage, from 0. It is folded into the seed of order and corruption, so that two stages on one task read other
    batches and other masks; the first stage's are those of the seed alone. Held-out examples are the same in all stages.
    on: gives the registered task another text (Own.task). kept: of a run that is read; the records are then those that it was
    trained on, where the cache has them.
    """

    stage: Stage
    seed: int
    cache: Path
    number: int = 0
    on: Callable[[Task, str | None], Task] | None = None
    kept: Kept = Kept()

    @functools.cached_property
    def task(self) -> Task:
        with quiet.imports():  # TensorFlow comes with it, so only a command that reads data pays for it
            import ptmjax.tasks  # noqa: F401  registers
            from ptmjax.data import adapters

        task, kept = adapters.read(self.stage.task), self.kept.vocabulary
        if self.on is None:
            return dataclasses.replace(task, vocabulary=task.vocabulary.at(kept)) if kept else task
        first_alone(lambda: self.on(task, kept), "the vocabulary")  # which is then in the cache
        return self.on(task, kept)

    @property
    def corruption(self) -> Callable:
        """Of training: the stage's own, or else its task's."""
        return self.stage.corruption or self.task.corruption

    @property
    def readout(self) -> Callable:
        """Of evaluation."""
        return self.stage.readout or self.task.readout or self.corruption

    def records(self, split: str) -> Records:
        """Built once: process 0 first, the others then find it by its name, without a look at the text; where their cache has it not (a
        disk of their own), they build it. A fault of process 0 ends them all."""
        name = first_alone(lambda: self.found(split, True).folder.name, f"the data of {self.stage.task}")
        there = (self.cache / name).is_dir()
        records = Records(self.cache / name) if there else self.found(split, False)
        if records.folder.name != name:
            me, other = jax.process_index(), records.folder.name
            raise UserError(f"process {me} has {other} as data of {self.stage.task}, process 0 {name}: give all the same text and options")
        return records

    def found(self, split: str, progress: bool) -> Records:
        name = self.kept.records.get(split)
        if name and (self.cache / name).is_dir():
            return Records(self.cache / name)
        return build(self.task, split, str(self.cache), progress=progress)

    @functools.cached_property
    def training(self) -> Records:
        return self.records("train")

    @functools.cached_property
    def validation(self) -> Records:
        return self.records("validation")

    @functools.cached_property
    def source(self) -> loader.Source:
        n, seed = len(self.training), self.seed + (self.number << 32)  # Experiment.seed has 32 bits, order.py takes 64
        walk = order.Streams(n, self.stage.batch, seed) if self.stage.streams else order.Shuffled(n, seed)
        return loader.Source(self.training, walk, self.corruption, seed, self.task.name, self.stage.dupe_factor)

    @functools.cached_property
    def heldout_source(self) -> loader.Source:
        return loader.Source(self.validation, order.Sequential(len(self.validation)), self.readout, self.seed, self.task.name)

    @property
    def spec(self) -> loop.Spec:
        """Shapes and types of a row of training, for which neither text nor cache is read (Task.made_up)."""
        records = self.task.made_up()
        return loader.Source(records, order.Sequential(len(records)), self.corruption, self.seed, self.task.name).spec

    def batches(self, sharding, rows: int, begin: int):
        return loader.batches(self.source, rows, sharding, begin)

    def heldout(self, sharding, rows: int):
        return loader.evaluation(self.heldout_source, rows, sharding, self.stage.heldout, streams=self.stage.streams)

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

    def prepare(self) -> tuple[Records, Records]:
        """Both splits, built where they lack. To be called on all processes: they wait for each other."""
        return self.training, self.validation

    def told(self) -> str:
        """What the cache says of both splits: records, documents, tokens, what was dropped, ill-formed, said before or unknown; a line
        more for each share that is high."""
        counts = collections.Counter()
        for records in self.prepare():
            counts.update({name: n for name, n in records.manifest["counts"].items() if name != "invalid"})
        counts["invalid bytes"] = self.training.manifest["counts"].get("invalid", 0)
        unk = self.task.vocabulary.unk
        counts["unknown tokens"] = 0 if unk is None else int(sum(records.counts[unk] for records in self.prepare()))
        more = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n)
        said = f"{self.task.name}: {len(self.training):,} training and {len(self.validation):,} validation records ({more})"
        return "\n".join([said, *warnings(counts), *self.without_target()])

    def without_target(self) -> list[str]:
        """A line where many of the first SEEN rows of training, or of what is held out, have no place that is scored: their loss is 0
        over 0, which is 0, and a run of such rows alone would look like one that has learnt all there is."""
        sources = [s for s in (self.source, self.heldout_source) if "weights" in s.spec]
        rows = [s.examples(np.arange(min(SEEN, len(s.records))))["weights"] > 0 for s in sources]
        share = max((1 - x.any(1).mean() for x in rows), default=0.0)
        return [f"warning: {share:.1%} of rows have nothing that is scored: their text is unknown characters, or words longer than what is "
                "masked of a row"] if share > 0.1 else []


SEEN = 256  # rows
LONG = 200_000  # tokens of a document on average: a book has about as many
HIGH = {  # what is counted -> (of what, the share from which it is told, what it means)
    "unknown tokens": ("tokens", 0.01, "characters that the vocabulary lacks: train one on this text, or take another"),
    "duplicates": ("documents", 0.05, "documents that repeat another: a model learns those by heart"),
    "dropped": ("documents", 0.1, "documents too short for a record: is a document a line? (--style=line, --field)"),
    "lone_sentences": ("documents", 0.1, "documents of one sentence, so that no next one follows: put blank lines between documents only"),
    "dropped_tokens": ("all tokens", 0.1, "tokens that fill no record: documents are short for rows of this length"),
    "unmatched_words": ("words", 0.01, "words of the segmenter that the text, or its pieces, do not have: such places are single pieces"),
    "untagged_words": ("tokens", 0.01, "words without a tag: is the text written as word/tag word/tag?"),
    "lone_turns": ("documents", 0.1, "dialogues of one turn, which nothing answers: put a blank line between dialogues only"),
    "invalid bytes": ("tokens", 0.001, "bytes that are not UTF-8: is the text in another encoding?"),
}


def warnings(counts: Mapping[str, int]) -> list[str]:
    """A line for each share of `counts` that is high."""
    of = {**counts, "all tokens": counts["tokens"] + counts["dropped_tokens"]}
    long = counts["tokens"] / max(1, counts["documents"]) > LONG
    few = f"warning: {counts['tokens']:,} tokens are in {counts['documents']:,} documents: is a document a line? (--style=line)"
    said = [few] * long
    shares = {name: counts[name] / of[whole] for name, (whole, _, _) in HIGH.items() if of.get(whole)}
    return said + [f"warning: {shares[name]:.1%} of {whole.removeprefix('all ')} are {means}"
            for name, (whole, most, means) in HIGH.items() if shares.get(name, 0) > most]
