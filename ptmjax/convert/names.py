"""Name tables: which parameter of ours is which tensor of a published checkpoint.

N layers of a group, stacked in one parameter of ours, a tensor each in theirs.
"""
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ptmjax.training.build import Build, Leaf
from ptmjax.types import UserError

Tensors = Mapping[str, np.ndarray]


class Name(NamedTuple):
    """`theirs` holds a {} for the number of the layer where `ours` is a stack of several; turned: theirs is the transpose."""

    ours: str
    theirs: str
    turned: bool = False


def linear(ours: str, theirs: str, bias: bool = True) -> list[Name]:
    """torch keeps [outputs, inputs]."""
    return [Name(f"{ours}/kernel", f"{theirs}.weight", True)] + [Name(f"{ours}/bias", f"{theirs}.bias")] * bias


def norm(ours: str, theirs: str, bias: bool = True) -> list[Name]:
    return [Name(f"{ours}/scale", f"{theirs}.weight")] + [Name(f"{ours}/bias", f"{theirs}.bias")] * bias


def present(table: Iterable[Name], build: Build) -> Iterator[tuple[Name, str, Leaf, list[str]]]:
    """(name, the path that owns it, its leaf, their names: one a layer) of what the networks have."""
    for name in table:
        if name.ours in build.keys:
            owner = build.owner(name.ours)
            leaf = build.leaves[owner]
            yield name, owner, leaf, [name.theirs.format(i) for i in range(leaf.shape[0] if stacked(leaf) else 1)]


def stacked(leaf: Leaf) -> bool:
    return leaf.names[0] == "layers"


def pull(table: Iterable[Name], tensors: Tensors, build: Build, where: str) -> dict[str, np.ndarray]:
    """Our parameters, float32, of which `tensors` has all parts; padding of a vocabulary is 0. Another shape is a UserError."""
    found = {}
    for name, owner, leaf, theirs in present(table, build):
        if "{}" in name.theirs and name.theirs.format(len(theirs)) in tensors:
            mend = "choose its number of layers" if stacked(leaf) else "layers that share it cannot begin with several"
            raise UserError(f"{where} has more layers than the {len(theirs)} of {name.ours}: {mend}")
        if all(one in tensors for one in theirs):
            parts = [shaped(tensors[one], name, leaf, f"{one} of {where}") for one in theirs]
            found[owner] = np.stack(parts) if stacked(leaf) else parts[0]
    return found


def shaped(x: np.ndarray, name: Name, leaf: Leaf, what: str) -> np.ndarray:
    """A tensor in our shape (that of one layer, where the parameter is a stack)."""
    if x.dtype.kind != "f":
        raise UserError(f"{what} is of {x.dtype}, not of floats: save the model without quantisation")
    x = np.asarray(x, np.float32)
    x = x.T if name.turned else x
    rows, *more = leaf.sizes[1:] if stacked(leaf) else leaf.sizes
    if x.shape != (rows, *more):
        raise UserError(f"{what} is {list(x.shape)}, {name.ours} is {[rows, *more]}: choose its sizes")
    padding = 0 if stacked(leaf) else leaf.shape[0] - rows
    return np.concatenate([x, np.zeros((padding, *more), np.float32)]) if padding else np.ascontiguousarray(x)


def push(table: Iterable[Name], params: Tensors, build: Build) -> dict[str, np.ndarray]:
    """Their tensors, float32, without the padding of vocabularies."""
    out = {}
    for name, owner, leaf, theirs in present(table, build):
        x = np.asarray(params[owner], np.float32)
        parts = x if stacked(leaf) else [x[: leaf.sizes[0]]]
        out |= {one: np.ascontiguousarray(part.T if name.turned else part) for one, part in zip(theirs, parts, strict=True)}
    return out
