"""What a sweep file says: the variants of a run, its seeds, and the readouts that all of them share."""
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ptmjax.types import UserError, at_least

NAME = re.compile(r"\w[\w.-]{0,63}")  # of a folder, or of a file


@dataclass(frozen=True)
class Sweep:
    """gin_file: of every variant that names none of its own. variants: name -> what it says besides, each NAME=VALUE, as --gin.NAME=VALUE
    would, or FILE.gin; the first is what the others are compared with. bindings: of all variants, before their own. seeds: how many, from
    0 on. readouts: name -> [a command of ptmjax without its --workdir that prints JSON, then those of its numbers that are compared]."""

    gin_file: str
    variants: Mapping[str, Sequence[str]]
    readouts: Mapping[str, Sequence[str]]
    bindings: Sequence[str] = ()
    seeds: int = 3

    def __post_init__(self):
        at_least(1, seeds=self.seeds, variants=len(self.variants), readouts=len(self.readouts))
        for name in (*self.variants, *self.readouts):
            if not NAME.fullmatch(name):
                raise UserError(f"{name!r} is to be the name of a folder or file: write letters, digits, _ . -")
        for name, words in self.readouts.items():
            if len(words) < 2:
                raise UserError(f"readout {name!r} is [a command, a number, ...]: name at least one number of its JSON")
        for name, words in self.variants.items():
            if strange := [word for word in words if not _is_file(word) and "=" not in word]:
                raise UserError(f"variant {name!r} says {strange[0]!r}: write NAME=VALUE, or a gin file FILE.gin")

    def files(self, variant: str) -> list[str]:
        return [word for word in self.variants[variant] if _is_file(word)] or [self.gin_file]

    def said(self, variant: str, more: Sequence[str], seed: int) -> list[str]:
        """NAME=VALUE each, the later ones win; more: of the command line."""
        own = [word for word in self.variants[variant] if not _is_file(word)]
        return [*self.bindings, *own, *more, f"Experiment.seed={seed}"]


def _is_file(word: str) -> bool:
    return "=" not in word and word.endswith(".gin")


class Run(NamedTuple):
    """A variant with a seed."""

    variant: str
    seed: int
    folder: Path
    files: list[str]
    bindings: list[str]

    def words(self, cache: Path) -> list[str]:
        """Of the command that trains it."""
        files, bindings = (f"--gin_file={file}" for file in self.files), (f"--gin.{binding}" for binding in self.bindings)
        return ["train", *files, *bindings, f"--workdir={self.folder}", f"--cache={cache}"]


def runs(sweep: Sweep, workdir: Path, more: Sequence[str] = ()) -> list[Run]:
    """Every variant with every seed, seed by seed, so that what is there after any time can be compared."""
    return [Run(name, seed, workdir / f"{name}-{seed}", sweep.files(name), sweep.said(name, more, seed))
            for seed in range(sweep.seeds) for name in sweep.variants]


class Readout(NamedTuple):
    name: str
    words: list[str]  # of the command, without --workdir
    numbers: list[str]


def readouts(sweep: Sweep) -> list[Readout]:
    found = []
    for name, (command, *numbers) in sweep.readouts.items():
        try:
            words = shlex.split(command)
        except ValueError as e:
            raise UserError(f"readout {name!r}: {command!r} cannot be read ({e}): close its quotes") from e
        if not words:
            raise UserError(f"readout {name!r} names no command: write one, such as eval --task=en_pd_mlm_64 --head=mlm")
        found.append(Readout(name, words, numbers))
    return found
