"""Shipped experiments on a part of the shipped text."""
import dataclasses
import functools
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from ptmjax.tasks.corpora import EN_PD_SMALL

from ptmjax.cli.experiment import Data
from ptmjax.data import adapters


def read_less(patch: pytest.MonkeyPatch, folder: Path, lines: int, **task) -> None:
    """Every task reads the first `lines` of the shipped text, which are written to `folder`; fields of `task` replace its own."""
    with lzma.open(EN_PD_SMALL, "rt", encoding="utf-8") as text:
        (folder / "text.txt").write_text("".join(itertools.islice(text, lines)), encoding="utf-8")
    in_place_of(patch, Data, "task", lambda data: dataclasses.replace(adapters.read(data.stage.task), text=str(folder / "text.txt"), **task))


def in_place_of(patch: pytest.MonkeyPatch, cls: type, name: str, found: Callable[[object], object]) -> None:
    """A cached property of a class is another."""
    other = functools.cached_property(found)
    other.__set_name__(cls, name)
    patch.setattr(cls, name, other)
