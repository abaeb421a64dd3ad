"""A task's part in a stage: its records in the cache, its examples in the corruption of the run, and what is told of its text."""
import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from ptmjax.data import loader, order
from ptmjax.data.records import Records, build
from ptmjax.data.task import Task
from ptmjax.parallel.distributed import first_alone
from ptmjax.training import loop
from ptmjax.types import UserError


@dataclass(frozen=True)
class Part:
    """corruption, readout: of training and of evaluation. walk: number of records -> the order of training. seeds: of training, and of
    what is held out. kept: split -> name of the folder in the cache, of a run that is read; the records are then those that it was
    trained on, where the cache has them."""

    task: Task
    corruption: Callable
    readout: Callable
    walk: Callable[[int], Callable]
    seeds: tuple[int, int]
    cache: Path
    dupe_factor: int | None = None
    kept: Mapping[str, str] = field(default_factory=dict)

    def records(self, split: str) -> Records:
        """Built once: process 0 first, the others then find it by its name, without a look at the text; where their cache has it not (a
        disk of their own), they build it. A fault of process 0 ends them all."""
        name = first_alone(lambda: self.found(split, True).folder.name, f"the data of {self.task.name}")
        there = (self.cache / name).is_dir()
        records = Records(self.cache / name) if there else self.found(split, False)
        if records.folder.name != name:
            me, other = jax.process_index(), records.folder.name
            raise UserError(f"process {me} has {other} as data of {self.task.name}, process 0 {name}: give all the same text and options")
        return records

    def found(self, split: str, progress: bool) -> Records:
        name = self.kept.get(split)
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
        walk = self.walk(len(self.training))
        return loader.Source(self.training, walk, self.corruption, self.seeds[0], self.task.name, self.dupe_factor)

    @functools.cached_property
    def heldout_source(self) -> loader.Source:
        return loader.Source(self.validation, order.Sequential(len(self.validation)), self.readout, self.seeds[1], self.task.name)

    @property
    def spec(self) -> loop.Spec:
        """Shapes and types of a row of training, for which neither text nor cache is read (Task.made_up)."""
        records = self.task.made_up()
        return loader.Source(records, order.Sequential(len(records)), self.corruption, self.seeds[1], self.task.name).spec

    def shown(self, heldout: int | None) -> int:
        """How many records are evaluated, of at most `heldout`."""
        return len(self.validation) if heldout is None else min(heldout, len(self.validation))

    # ------------------------------------------------------------------ what is told
    def told(self) -> str:
        """What the cache says of both splits: records, documents, tokens, what was dropped, ill-formed, said before or unknown; a line
        more for each share that is high."""
        counts, both = collections.Counter(), (self.training, self.validation)
        for records in both:
            counts.update({name: n for name, n in records.manifest["counts"].items() if name != "invalid"})
        counts["invalid bytes"] = self.training.manifest["counts"].get("invalid", 0)
        unk = self.task.vocabulary.unk
        counts["unknown tokens"] = 0 if unk is None else int(sum(records.counts[unk] for records in both))
        more = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n)
        said = f"{self.task.name}: {len(self.training):,} training and {len(self.validation):,} validation records ({more})"
        return "\n".join([said, *warnings(counts), *few(len(self.validation)), *self.without_target()])

    def without_target(self) -> Sequence[str]:
        """A line where many of the first SEEN rows of training, or of what is held out, have no place that is scored: their loss is 0
        over 0, which is 0, and a run of such rows alone would look like one that has learnt all there is."""
        sources = [s for s in (self.source, self.heldout_source) if "weights" in s.spec]
        rows = [s.examples(np.arange(min(SEEN, len(s.records))))["weights"] > 0 for s in sources]
        share = max((1 - x.any(1).mean() for x in rows), default=0.0)
        return [f"warning: {share:.1%} of rows have nothing that is scored: their text is unknown characters, or words longer than what is "
                "masked of a row"] if share > 0.1 else []


FEW = 10  # held-out records: of fewer, one more or less moves every number held out
SEEN = 256  # rows
LONG = 200_000  # tokens of a document on average: a book has about as many
HIGH = {  # what is counted -> (of what, the share from which it is told, what it means)
    "unknown tokens": ("tokens", 0.01, "characters that the vocabulary lacks: train one on this text, or take another"),
    "duplicates": ("documents", 0.05, "documents that repeat another: a model learns those by heart"),
    "dropped": ("documents", 0.1, "documents too short for a record: is a document a line? (--style=line, --field)"),
    "too_long": ("documents", 0.05, "pairs of texts that are longer than a row: make rows longer"),
    "lone_sentences": ("documents", 0.1, "documents of one sentence, so that no next one follows: put blank lines between documents only"),
    "dropped_tokens": ("all tokens", 0.1, "tokens that fill no record: documents are short for rows of this length"),
    "unmatched_words": ("words", 0.01, "words of the segmenter that the text, or its pieces, do not have: such places are single pieces"),
    "untagged_words": ("tokens", 0.01, "words without a tag: is the text written as word/tag word/tag?"),
    "lone_turns": ("documents", 0.1, "dialogues of one turn, which nothing answers: put a blank line between dialogues only"),
    "invalid bytes": ("tokens", 0.001, "bytes that are not UTF-8: is the text in another encoding?"),
}


def few(heldout: int) -> list[str]:
    """A line where hardly anything is held out."""
    return [f"warning: {heldout} validation record{'s'[: heldout != 1]}: what is held out says little: give more text, or hold out more of "
            "it (--holdout, the task's holdout)"] if heldout < FEW else []


def warnings(counts: Mapping[str, int]) -> list[str]:
    """A line for each share of `counts` that is high."""
    of = {**counts, "all tokens": counts["tokens"] + counts["dropped_tokens"]}
    long = counts["tokens"] / max(1, counts["documents"]) > LONG
    few = f"warning: {counts['tokens']:,} tokens are in {counts['documents']:,} documents: is a document a line? (--style=line)"
    said = [few] * long
    shares = {name: counts[name] / of[whole] for name, (whole, _, _) in HIGH.items() if of.get(whole)}
    return said + [f"warning: {shares[name]:.1%} of {whole.removeprefix('all ')} are {means}"
            for name, (whole, most, means) in HIGH.items() if shares.get(name, 0) > most]
