"""Tasks and mixtures by name.

SeqIO's registries hold them as well from the moment at which anything imports seqio (adapters.py), so that plain
seqio.get_mixture_or_task finds them; a command that does not ask SeqIO starts without it and without TensorFlow.
"""
import difflib
import importlib
from types import ModuleType
from typing import NamedTuple

import wrapt

from ptmjax.data.task import Mixture, Task
from ptmjax.types import UserError, at_least


class Entry(NamedTuple):
    """seed and dupe_factor are the loader's whose examples plain SeqIO shall give."""

    task: Task | Mixture
    seed: int = 0
    dupe_factor: int | None = None


_entries: dict[str, Entry] = {}
_mirror: ModuleType | None = None  # adapters, once seqio is imported


def register(task: Task | Mixture, seed: int = 0, dupe_factor: int | None = None) -> None:
    """Adds it under its name, and those tasks of a mixture that are not there yet. UserError where another has the name."""
    if dupe_factor is not None:
        at_least(1, dupe_factor=dupe_factor)
    if task.name in names():
        raise UserError(f"a task or mixture {task.name!r} is registered already: give this one another name")
    for part in task.tasks if isinstance(task, Mixture) else ():
        if part.name not in names():
            register(part, seed, dupe_factor)
        elif read(part.name) != part:
            raise UserError(f"mixture {task.name}: another task is registered as {part.name!r}: give it another name")
    entry = Entry(task, seed, dupe_factor)
    if _mirror is not None:
        _mirror.add(entry)
    _entries[task.name] = entry


def remove(name: str) -> None:
    """Forgets it, here and in SeqIO; the tasks of a mixture stay. UserError where there is none."""
    if name not in _entries:
        raise UserError(f"task {name!r} is not registered: it cannot be removed")
    del _entries[name]
    if _mirror is not None:
        _mirror.remove(name)


def names() -> list[str]:
    """Of all that are registered, SeqIO's own among them where it is imported."""
    return sorted({*_entries, *(() if _mirror is None else _mirror.names())})


def read(name: str) -> Task | Mixture:
    """The task or mixture of that name, one that SeqIO itself made of our tasks too; UserError where there is none, or one of tasks
    that are not ours."""
    if name in _entries:
        return _entries[name].task
    if name in names():
        return _mirror.read(name)
    near = difflib.get_close_matches(name, names()) or names()[:5]
    raise UserError(f"task {name!r} is not registered: did you mean {', '.join(near)}?")


def mirror(adapters: ModuleType) -> None:
    """From here on SeqIO has what is registered: adapters.py says so of itself, at its end."""
    global _mirror
    for entry in list(_entries.values()):
        adapters.add(entry)
    _mirror = adapters


@wrapt.when_imported("seqio")
def _follow(seqio: ModuleType) -> None:
    importlib.import_module("ptmjax.data.adapters")
