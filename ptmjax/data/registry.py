"""Tasks and mixtures by name.

SeqIO's registries hold them as well from the moment at which anything imports seqio (adapters.py), so that plain
seqio.get_mixture_or_task finds them; a command that does not ask SeqIO starts without it and without TensorFlow.
"""
import difflib
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
_seqio: list[ModuleType] = []  # adapters, once seqio is imported


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
    _entries[task.name] = Entry(task, seed, dupe_factor)
    for adapters in _seqio:
        adapters.add(_entries[task.name])


def remove(name: str) -> None:
    """Forgets it; the tasks of a mixture stay."""
    del _entries[name]
    for adapters in _seqio:
        adapters.remove(name)


def names() -> list[str]:
    """Of all that are registered, SeqIO's own among them where it is imported."""
    return sorted({*_entries, *(name for adapters in _seqio for name in adapters.names())})


def read(name: str) -> Task | Mixture:
    """The task or mixture of that name, one that SeqIO itself made of our tasks too; UserError where there is none, or one of tasks
    that are not ours."""
    if name in _entries:
        return _entries[name].task
    if name in names():
        return _seqio[0].read(name)
    near = difflib.get_close_matches(name, names()) or names()[:5]
    raise UserError(f"task {name!r} is not registered: did you mean {', '.join(near)}?")


@wrapt.when_imported("seqio")
def _too(seqio: ModuleType) -> None:
    from ptmjax.data import adapters

    _seqio.append(adapters)
    for entry in _entries.values():
        adapters.add(entry)
