"""Shipped experiments on a part of the shipped text."""
import dataclasses
import functools
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from ptmjax.tasks.corpora import EN_PD_SMALL, ZH_DIALOGUE, ZH_PD_SMALL

from ptmjax.cli.experiment import Data
from ptmjax.data import adapters
from ptmjax.data.task import Task


def read_less(patch: pytest.MonkeyPatch, folder: Path, lines: int, **task) -> None:
    """Every task reads the first `lines` of its shipped text, which are written to `folder`; fields of `task` replace its own."""
    less = {EN_PD_SMALL: folder / "text.txt", ZH_PD_SMALL: folder / "text.jsonl", ZH_DIALOGUE: folder / "talk.txt"}
    said = Path(ZH_DIALOGUE).read_text(encoding="utf-8").strip().split("\n\n")
    less[ZH_DIALOGUE].write_text("\n\n".join(f"{one}\nR: {i}" for i in range(4) for one in said), encoding="utf-8")  # too few are shipped
    for whole, part in list(less.items())[:2]:
        with lzma.open(whole, "rt", encoding="utf-8") as text:
            part.write_text("".join(itertools.islice(text, lines)), encoding="utf-8")

    def of(data: Data) -> Task:
        found = adapters.read(data.stage.task)
        return dataclasses.replace(found, text=str(less[found.text]), **task)

    in_place_of(patch, "task", of)


def in_place_of(patch: pytest.MonkeyPatch, name: str, found: Callable[[Data], object]) -> None:
    """A cached property of Data is another."""
    other = functools.cached_property(found)
    other.__set_name__(Data, name)
    patch.setattr(Data, name, other)
