"""Shipped experiments on a part of the shipped text."""
import dataclasses
import functools
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from ptmjax.tasks.corpora import EN_PD_SMALL, EN_ZH, ZH_DIALOGUE, ZH_PD_SMALL

from ptmjax.cli.experiment import Data
from ptmjax.data import registry
from ptmjax.data.task import Mixture, Task


def read_less(patch: pytest.MonkeyPatch, folder: Path, lines: int, **task) -> None:
    """Every task reads the first `lines` of the shipped text that it names, which are written to `folder`; fields of `task` replace
    its own."""
    for shipped in (EN_PD_SMALL, EN_ZH, ZH_PD_SMALL):
        with lzma.open(shipped, "rt", encoding="utf-8") as text:
            (folder / Path(shipped).stem).write_text("".join(itertools.islice(text, lines)), encoding="utf-8")
    said = Path(ZH_DIALOGUE).read_text(encoding="utf-8").strip().split("\n\n")
    talk = "\n\n".join(f"{one}\nR: {i}" for i in range(4) for one in said)  # too few are shipped
    (folder / Path(ZH_DIALOGUE).stem).write_text(talk, encoding="utf-8")

    def less(of: Task | Mixture) -> Task | Mixture:
        if isinstance(of, Mixture):
            return dataclasses.replace(of, parts=tuple(map(less, of.parts)))
        return dataclasses.replace(of, text=str(folder / Path(of.text).stem), **task)

    in_place_of(patch, Data, "task", lambda data: less(registry.read(data.stage.task)))


def in_place_of(patch: pytest.MonkeyPatch, cls: type, name: str, found: Callable[[object], object]) -> None:
    """A cached property of a class is another."""
    other = functools.cached_property(found)
    other.__set_name__(cls, name)
    patch.setattr(cls, name, other)
