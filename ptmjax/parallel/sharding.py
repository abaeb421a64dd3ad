"""Where arrays live: NamedShardings from logical names, checked before anything is allocated."""
import math
from collections.abc import Mapping

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.types import ROWS, PyTree, check_divides, spec


def rows_sharding(mesh: Mesh) -> NamedSharding:
    """Arrays whose first axis counts the rows of a batch."""
    return NamedSharding(mesh, P(ROWS))


def row_shards(mesh: Mesh) -> int:
    return math.prod(mesh.shape[a] for a in ROWS)


def placed(mesh: Mesh, name: str, shape: tuple[int, ...], names: tuple[str | None, ...]) -> NamedSharding:
    """The sharding of the parameter `name`; an axis that the mesh does not divide is a UserError that says which."""
    wanted = spec(*names)
    check_divides(f"parameter {name} {list(shape)}", shape, wanted, names, mesh.shape)
    return NamedSharding(mesh, wanted)


def follow(tree: PyTree, params: Mapping[str, jax.ShapeDtypeStruct], shardings: Mapping[str, NamedSharding],
           otherwise: NamedSharding) -> PyTree:
    """Shardings of an optimizer's state. A leaf whose path ends in a parameter's name and that has its axes, each whole or
    reduced to 1 (factored moments), lies as that parameter does along those that are whole; any other (a counter) as `otherwise`."""
    def one(path, x):
        name = str(getattr(path[-1], "key", "")) if path else ""
        if name not in params or len(x.shape) != len(params[name].shape):
            return otherwise
        there = shardings[name]
        axes = [*there.spec, *[None] * (len(x.shape) - len(there.spec))]
        if any(size not in (whole, 1) for size, whole in zip(x.shape, params[name].shape)):
            return otherwise
        kept = [axis if size == whole else None for size, whole, axis in zip(x.shape, params[name].shape, axes)]
        return there if x.shape == params[name].shape else NamedSharding(there.mesh, P(*kept))

    return jax.tree_util.tree_map_with_path(one, tree)
