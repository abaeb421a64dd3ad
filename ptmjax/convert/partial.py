"""Parameters of a run of ours as the beginning of another: by path, under other paths, some layers of a stack.

N layers of a group, stacked in one parameter whether they are scanned or looped, or one parameter that they share.
"""
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from ptmjax.convert.published import tell
from ptmjax.nn.param import VOCAB_MULTIPLE
from ptmjax.training.build import Build, Leaf
from ptmjax.training.checkpoint import Checkpoints, Shapes
from ptmjax.types import UserError

FOLDER = "checkpoints"  # of a work folder
Renames = Mapping[str, str]


class Source(NamedTuple):
    """Where a parameter comes from: a path of the other run, and which of its layers (None: all)."""

    path: str
    layers: slice | list[int] | None


def initial(where: epath.PathLike, build: Build, renames: Renames, say: Callable[[str], None]) -> dict[str, np.ndarray]:
    """The parameters of `build` that the newest checkpoint of the work folder `where` has.

    renames: path or prefix of ours -> theirs, of several that match the longest; behind theirs may stand which layers of a stack are
    taken, "[::2]" or "[0,2,4]" ("[3]" where ours is one parameter that layers share); "": none of theirs. Without them a parameter is
    taken by its own path; one that layers share begins all layers of a stack. What was loaded, reshaped (a vocabulary's padding), copied
    to layers and skipped, and what is new, is said by name; another shape is a UserError.
    """
    sources = {name: source for name in build.leaves if (source := source_of(name, renames))}
    held: dict[str, tuple[int, ...]] = {}

    def choose(shapes: Shapes) -> list[str]:
        check_renames(where, build, renames, shapes)
        held.update(shapes)
        taken = {name: source for name, source in sources.items() if source.path in shapes}
        if not taken:
            raise UserError(f"{where} has no parameter of this network, such as {sorted(build.leaves)[0]}: say by Experiment.renames where "
                            "each lies")
        for name, source in taken.items():
            fitted(np.broadcast_to(np.float32(0), shapes[source.path]), name, source, build.leaves[name], where)
        return sorted({source.path for source in taken.values()})

    read = Checkpoints(epath.Path(where) / FOLDER, say=say).some_params(choose)
    if read is None:
        raise UserError(f"{where} holds no checkpoint: let `ptmjax train` reach its first save, or name another folder")
    step, theirs = read
    found = {name: fitted(theirs[s.path], name, s, build.leaves[name], where) for name, s in sources.items() if s.path in theirs}
    at = f"{where}, step {step}"
    say(f"{at}: {len(found)} of {len(build.leaves)} parameters are begun with")
    tell(say, at, found, "is loaded" if len(found) == 1 else "are loaded")
    spread = {n for n, x in found.items() if x.ndim > len(held[sources[n].path])}
    tell(say, at, spread, "is copied from what layers share there to each layer here")
    tell(say, at, [n for n, x in found.items() if n not in spread and sources[n].layers is None and x.shape != held[sources[n].path]],
         "is reshaped, by the padding of the vocabulary alone")
    tell(say, at, build.leaves.keys() - found.keys(), "is new and keeps its initial law")
    tell(say, at, held.keys() - theirs.keys(), "of the checkpoint is skipped")
    return found


def source_of(path: str, renames: Renames) -> Source | None:
    """What becomes the parameter at `path`; None where a rename says that nothing does."""
    ours = max((r for r in renames if under(path, r)), key=len, default=None)
    if ours is None:
        return Source(path, None)
    theirs, layers = parsed(ours, renames[ours])
    return Source(theirs + path[len(ours):], layers) if theirs else None


def parsed(ours: str, theirs: str) -> tuple[str, slice | list[int] | None]:
    """("path", which layers) of "path[::2]", "path[0,2,4]" or "path"."""
    path, bracket, inside = theirs.partition("[")
    if not bracket:
        return path, None
    inside = inside.replace(" ", "")
    if re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?(:(-?[1-9][0-9]*)?)?\]", inside):
        return path, slice(*(int(n) if n else None for n in inside[:-1].split(":")))
    if re.fullmatch(r"-?[0-9]+(,-?[0-9]+)*\]", inside):
        return path, [int(n) for n in inside[:-1].split(",")]
    raise UserError(f"Experiment.renames: {ours} <- {theirs}: write the layers as [::2] or [0,2,4]")


def under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def check_renames(where: epath.PathLike, build: Build, renames: Renames, shapes: Shapes) -> None:
    """A UserError for a rename that leads from or to nothing."""
    for ours, theirs in renames.items():
        path = parsed(ours, theirs)[0]
        for prefix, names, whose in ((ours, build.leaves, "this network"), (path, shapes, str(where))):
            if prefix and not any(under(name, prefix) for name in names):
                raise UserError(f"Experiment.renames: {ours} <- {theirs}: no parameter of {whose} lies under {prefix}; there are "
                                f"{', '.join(sorted(names)[:6])} ...")


def fitted(x: np.ndarray, name: str, source: Source, leaf: Leaf, where: epath.PathLike) -> np.ndarray:
    """Their parameter in the shape of ours: its layers, and a vocabulary's padding cut or filled with 0."""
    stacked, what = leaf.lead > 0, f"{where}: {source.path}"
    x = x if source.layers is None else chosen(x, name, source, leaf, what)
    x = np.broadcast_to(x, leaf.shape) if stacked and x.shape == leaf.shape[1:] else x
    rows, real = leaf.shape[leaf.lead : leaf.lead + 1], leaf.sizes[leaf.lead : leaf.lead + 1]
    has = x.shape[leaf.lead : leaf.lead + 1]
    if "vocab" in leaf.names and has != rows and real <= has and has[0] - real[0] < VOCAB_MULTIPLE:
        more = [(0, rows[0] - real[0] if i == leaf.lead else 0) for i in range(x.ndim)]
        x = np.pad(x[(slice(None),) * leaf.lead + (slice(real[0]),)], more)
    if x.shape != leaf.shape:
        layers = x.shape[1:] == leaf.shape[leaf.lead:]
        way = (f"say which by Experiment.renames, such as {{{name!r}: '{source.path}{'[::2]' if stacked else '[0]'}'}}" if layers else
               f"choose its sizes, or leave it out by Experiment.renames, {{{name!r}: ''}}")
        raise UserError(f"{what} is {list(x.shape)}, {name} is {list(leaf.shape)}: {way}")
    return x


def chosen(x: np.ndarray, name: str, source: Source, leaf: Leaf, what: str) -> np.ndarray:
    """The layers that a rename names; one, without their axis, where ours is shared by all."""
    if x.ndim == len(leaf.shape) - leaf.lead:
        raise UserError(f"Experiment.renames: {source.path} is no stack of layers, of which {name} could take some: drop the [...]")
    try:
        x = x[source.layers]
    except IndexError:
        raise UserError(f"{what} has {len(x)} layers, of which {name} is to have {source.layers}: count from 0") from None
    if not leaf.lead and len(x) != 1:
        raise UserError(f"Experiment.renames: {name} is shared by layers, and is to begin with {len(x)} of {source.path}: name one, as [0]")
    return x if leaf.lead else x[0]
