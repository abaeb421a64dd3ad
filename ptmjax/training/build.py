"""Named networks and their parameters outside of them: a flat dict path -> array, tied ones stored once."""
import fnmatch
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.types import Array, UserError, one_of

COMPUTE = ("bfloat16", "float16", "float32")
MOST = 2**40  # numbers of a parameter, 4 TiB


class Leaf(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    names: tuple[str | None, ...]  # logical axes
    unused: int  # scalars that only pad a vocabulary, in one layer of a stack

    @property
    def lead(self) -> int:
        """How many leading axes count the layers of a stack."""
        return next((i for i, name in enumerate(self.names) if name != "layers"), len(self.names))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape without the padding of a vocabulary, which ends the first axis that does not count layers."""
        layers, rest = self.shape[: self.lead], self.shape[self.lead :]
        return (*layers, rest[0] - self.unused // math.prod(rest[1:]), *rest[1:]) if rest else layers


class Build:
    """The networks of a run: factories by name, ties (path or prefix -> the path that owns it) and frozen patterns of owners.

    A tie or pattern that matches nothing, or ties of other shapes or vocabularies, is a UserError. `compute` is the type in which the
    networks see their parameters; the parameters themselves stay float32. With float16 the step scales the loss (scale.py).
    """

    def __init__(self, nets: Mapping[str, Callable[..., nnx.Module]], ties: Mapping[str, str] = {}, frozen: Sequence[str] = (),
                 compute: str = "float32"):
        one_of("compute", compute, COMPUTE)
        self.factories, self.ties, self.compute = dict(nets), dict(ties), jnp.dtype(compute)
        self.graph, tree = nnx.split(nnx.eval_shape(lambda: self.make(jax.random.key(0))))
        self.keys, leaves = {}, {}
        for path, v in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, nnx.Variable)):
            keys = tuple(getattr(p, "key", getattr(p, "name", None)) for p in path)
            name = "/".join(map(str, keys))
            self.keys[name] = keys
            if math.prod(v.shape) > MOST:  # XLA ends the process at some such size
                raise UserError(f"parameter {name} would be {list(v.shape)}: make its sizes smaller, of at most {MOST:,} numbers together")
            leaves[name] = Leaf(v.shape, str(v.dtype), tuple(v.get_metadata("out_sharding")), v.get_metadata("unused"))
        self.check_ties(leaves)
        self.leaves: dict[str, Leaf] = {n: leaf for n, leaf in leaves.items() if self.owner(n) == n}
        self.frozen = frozenset(n for pattern in frozen for n in matching(pattern, self.leaves, "frozen"))

    def make(self, key: Array) -> nnx.Dict:
        return nnx.Dict({name: f(key=jax.random.fold_in(key, zlib.crc32(name.encode()))) for name, f in sorted(self.factories.items())})

    def owner(self, path: str) -> str:
        """The path under which the parameter at `path` is stored; of several ties that match, the longest counts."""
        for _ in range(len(self.ties) + 1):
            there = max((t for t in self.ties if path == t or path.startswith(t + "/")), key=len, default=None)
            if there is None:
                return path
            path = self.ties[there] + path[len(there):]
        raise UserError(f"tie {there} <- {self.ties[there]}: the ties go round in a circle and nothing owns the parameter")

    def check_ties(self, leaves: Mapping[str, Leaf]) -> None:
        for there, source in self.ties.items():
            under = [n for n in leaves if n == there or n.startswith(there + "/")]
            if not under:
                raise UserError(f"tie {there} <- {source}: no parameter lies under {there}; there are {sorted(leaves)[:6]} ...: mend "
                                "Experiment.ties, or empty it, {}, where what it ties is gone")
            for n in under:
                owner = self.owner(n)
                mine, its = size(leaves[n]), size(leaves[owner]) if owner in leaves else "nothing"
                if mine != its:
                    raise UserError(f"tie {there} <- {source}: {n} is {mine}, {owner} is {its}: give both the same sizes")

    def init(self, key: Array) -> dict[str, Array]:
        """All parameters, tied ones once."""
        tree = nnx.to_pure_dict(nnx.split(self.make(key))[1])
        return {name: at(tree, self.keys[name]) for name in self.leaves}

    def nets(self, params: Mapping[str, Array]) -> Mapping[str, Any]:
        """The networks over `params`, cast to the compute type."""
        tree: dict = {}
        for name, keys in self.keys.items():
            node = tree
            for k in keys[:-1]:
                node = node.setdefault(k, {})
            node[keys[-1]] = params[self.owner(name)].astype(self.compute)
        return nnx.merge(self.graph, tree)

    def count(self, pattern: str = "*") -> int:
        """Parameters under paths that match, without the padding of vocabularies, tied ones once."""
        return sum(math.prod(leaf.sizes) for name, leaf in self.leaves.items() if fnmatch.fnmatchcase(name, pattern))


def size(leaf: Leaf) -> str:
    """What two tied leaves must share: the shape, and how many entries of it are real."""
    return f"{leaf.shape}" + (f" for {leaf.sizes[leaf.lead]} entries" if leaf.unused else "")


def at(tree: Mapping, keys: Sequence) -> Array:
    for k in keys:
        tree = tree[k]
    return tree


def matching(pattern: str, names, what: str) -> list[str]:
    """The names that match a shell pattern; none is a UserError."""
    found = fnmatch.filter(names, pattern)
    if not found:
        raise UserError(f"{what} pattern {pattern!r} matches no parameter; there are {sorted(names)[:6]} ...")
    return found
