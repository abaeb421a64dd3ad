"""Name tables: which parameter of ours is which tensor of a published checkpoint.

N layers of a group, stacked in one parameter of ours, a tensor each in theirs.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ptmjax.training.build import Leaf
from ptmjax.types import UserError

Tensors = Mapping[str, np.ndarray]


class Name(NamedTuple):
    """`theirs` holds a {} for the number of the layer where `ours` is a stack of layers; turned: theirs is the transpose."""

    ours: str
    theirs: str
    turned: bool = False


def linear(ours: str, theirs: str, bias: bool = True) -> list[Name]:
    """torch keeps [outputs, inputs]."""
    return [Name(f"{ours}/kernel", f"{theirs}.weight", True)] + [Name(f"{ours}/bias", f"{theirs}.bias")] * bias


def norm(ours: str, theirs: str, bias: bool = True) -> list[Name]:
    return [Name(f"{ours}/scale", f"{theirs}.weight")] + [Name(f"{ours}/bias", f"{theirs}.bias")] * bias


def real(leaf: Leaf) -> int:
    """Rows of the first axis without the padding of a vocabulary."""
    width = int(np.prod(leaf.shape[1:], dtype=np.int64))
    return (leaf.shape[0] * width - leaf.unused) // width if width else leaf.shape[0]


def pull(table: Iterable[Name], tensors: Tensors, leaves: Mapping[str, Leaf], where: str) -> dict[str, np.ndarray]:
    """Our parameters, float32, of which `tensors` has all parts; padding of a vocabulary is 0. Another shape is a UserError."""
    found = {}
    for name in table:
        if name.ours not in leaves:
            continue
        leaf, stacked = leaves[name.ours], "{}" in name.theirs
        theirs = [name.theirs.format(i) for i in range(leaf.shape[0])] if stacked else [name.theirs]
        if stacked and name.theirs.format(leaf.shape[0]) in tensors:
            raise UserError(f"{where} has more layers than the {leaf.shape[0]} of {name.ours}: choose the number of layers of {where}")
        if all(one in tensors for one in theirs):
            parts = [one_tensor(tensors[one], name, leaf, one, where) for one in theirs]
            found[name.ours] = np.stack(parts) if stacked else parts[0]
    return found


def one_tensor(x: np.ndarray, name: Name, leaf: Leaf, theirs: str, where: str) -> np.ndarray:
    """A tensor in our shape (that of one layer, where the parameter is a stack)."""
    x = np.asarray(x, np.float32)
    x = x.T if name.turned else x
    shape = leaf.shape[1:] if "{}" in name.theirs else leaf.shape
    rows = real(leaf) if leaf.unused else shape[0]
    if x.shape != (rows, *shape[1:]):
        raise UserError(f"{theirs} of {where} is {list(x.shape)}, {name.ours} is {[rows, *shape[1:]]}: choose the sizes of {where}")
    return np.concatenate([x, np.zeros((shape[0] - rows, *shape[1:]), np.float32)]) if shape[0] > rows else np.ascontiguousarray(x)


def push(table: Sequence[Name], params: Tensors, leaves: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
    """Their tensors, float32, without the padding of vocabularies. A parameter that the table does not name is a UserError."""
    if unnamed := sorted(leaves.keys() - {name.ours for name in table}):
        raise UserError(f"the published layout has no place for {', '.join(unnamed[:4])}: this network cannot be exported")
    out = {}
    for name in table:
        if name.ours in leaves:
            x, leaf = np.asarray(params[name.ours], np.float32), leaves[name.ours]
            parts = x if "{}" in name.theirs else [x[: real(leaf)] if leaf.unused else x]
            out |= {name.theirs.format(i): np.ascontiguousarray(part.T if name.turned else part) for i, part in enumerate(parts)}
    return out
