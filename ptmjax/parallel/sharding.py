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
    """Shardings of an optimizer's state: a leaf whose path ends in a parameter's name and that has its shape lies as that
    parameter does; any other (counters, factored rows) lies as `otherwise`."""
    def one(path, x):
        last = str(getattr(path[-1], "key", "")) if path else ""
        return shardings[last] if last in params and params[last].shape == x.shape else otherwise

    return jax.tree_util.tree_map_with_path(one, tree)
