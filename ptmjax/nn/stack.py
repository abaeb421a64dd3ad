"""Layers as groups, each one scan.

N layers of a group, B rows.
"""
import difflib
import fnmatch
import functools
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.types import SEQUENCE, Array, Key, PyTree, UserError, at_least, constrain, fold, one_of, sharding_rules

REMAT = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Stack(nnx.Module):
    """A sequence of (block factory, count). Memory and aux are lists with one entry a group, leaves [N, B, ...].

    A scan compiles a layer once (24 layers: 3 s instead of 40 on a CPU); loop=True unrolls it for debugging and gives the
    same initial bits. remat: what the backward pass computes again: "none" (but for what costs next to nothing, which
    the parts themselves say), "full" (all but layer inputs) or "dots". sequence: between the parts of layers a device of the mesh's
    axis `model` has a share of the places of each row (types.SEQUENCE), of whose norms, sums and dropout it makes and keeps no more
    (Korthikanti et al. 2022, section 4.2.2); the axis must divide the length of rows. shared: patterns (shell style) of paths
    within a block, such as "attention*", "mlp*" or "*" (Lan et al. 2020, section 3.1), of whose parameters a group holds one copy
    for all its layers, without their axis; it begins as the first layer's would, and its gradient is summed over them in float32.
    """

    def __init__(self, groups: Sequence[tuple[Callable, int]], *, remat: str = "none", loop: bool = False, sequence: bool = False,
                 shared: Sequence[str] = (), key: Array):
        one_of("remat", remat, REMAT)
        at_least(1, groups=len(groups))
        for number, (_, n) in enumerate(groups, 1):
            if n < 1:
                raise UserError(f"groups is given a count of {n} in group {number}; give at least 1, or leave the group out")
        self.remat, self.loop, self.sequence, self.counts = remat, loop, sequence, tuple(n for _, n in groups)
        keys = jax.random.split(key, len(groups))
        self.shared = tuple(shared)
        self.groups = nnx.List([stacked(block, n, k, self.is_shared) for (block, n), k in zip(groups, keys)])
        self.check_shared()

    def is_shared(self, path: Sequence[str], _: object = None) -> bool:
        """Of a parameter's path within a block; a filter of nnx.split."""
        return any(fnmatch.fnmatchcase("/".join(map(str, path)), pattern) for pattern in self.shared)

    def check_shared(self) -> None:
        paths = ["/".join(map(str, path)) for group in self.groups for path, _ in nnx.to_flat_state(nnx.state(group))]
        for pattern in self.shared:
            if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
                nearest = difflib.get_close_matches(pattern, sorted(set(paths)), 3, 0)
                raise UserError(f"shared is given {pattern!r}, which matches no parameter of a block; nearest: {', '.join(nearest)}")

    def __call__(self, state: PyTree, context: dict[str, Array], memory: list[PyTree] | None = None, key: Key | None = None,
                 capture: frozenset[str] = frozenset()) -> tuple[PyTree, list[PyTree], list[dict[str, Array]]]:
        with sharding_rules(SEQUENCE if self.sequence else {}):
            state, memories, auxes = self.through(state, context, memory, key, capture)
        if self.sequence:  # once, for all that reads it: heads, or every layer of a decoder
            state = jax.tree.map(lambda x: constrain(x, "batch", *[None] * (x.ndim - 1)), state)
        return state, memories, auxes

    def through(self, state: PyTree, context: dict[str, Array], memory: list[PyTree] | None, key: Key | None,
                capture: frozenset[str]) -> tuple[PyTree, list[PyTree], list[dict[str, Array]]]:
        memories, auxes = [], []
        for i, (blocks, n) in enumerate(zip(self.groups, self.counts)):
            graph, one, many = nnx.split(blocks, self.is_shared, ...)
            wide = jax.tree.map(lambda x: x.astype(jnp.float32), one)  # in which the gradients of layers are then added up
            body = functools.partial(one_layer, graph, (wide, one), context, fold(key, i), capture)
            if self.remat != "none":
                body = jax.checkpoint(body, policy=REMAT[self.remat])
            xs = (many, None if memory is None else memory[i], jnp.arange(n))
            state, (held, aux) = unrolled(body, state, xs, n) if self.loop else jax.lax.scan(body, state, xs)
            memories.append(held)
            auxes.append(aux)
        return state, memories, auxes

    def init_memory(self, rows: int, reach: int | None = None) -> list[PyTree]:
        """A list with one entry a group, zeros [rows, N, ...] (rows first, as carry holds them), or None."""
        wide = lambda n: lambda x: jnp.broadcast_to(x[:, None], (rows, n, *x.shape[1:]))
        return [jax.tree.map(wide(n), group.init_memory(rows, reach)) for group, n in zip(self.groups, self.counts)]


def layer(aux: list[dict[str, Array]], name: str, i: int) -> Array:
    """[B, ...]: what layer i (counted through the groups) left in aux under `name`."""
    left = i
    for group in aux:
        n = len(next(iter(group.values()))) if group else 0
        if 0 <= left < n:
            return group[name][left]
        left -= n
    raise ValueError(f"no layer {i}: the groups left {i - left} of them")


def one_layer(graph: nnx.GraphDef, shared: tuple[PyTree, PyTree], context: dict[str, Array], key: Key | None, capture: frozenset[str],
              state: PyTree, xs: PyTree) -> tuple[PyTree, tuple]:
    """A step of the scan: xs is (what a layer alone has of its block, its memory, its number), shared what all have, in float32 and in
    the types in which a block sees it."""
    own, memory, number = xs
    block = nnx.merge(graph, jax.tree.map(lambda x, like: x.astype(like.dtype), *shared), own)
    state, memory, aux = block(state, context, memory, fold(key, number), capture)
    return state, (memory, aux)


def stacked(block: Callable, n: int, key: Array, shared: Callable[..., bool] = lambda *_: False):
    """n blocks as one: every parameter has a leading axis "layers", but for those `shared`, which are the first block's. Bits equal to n
    blocks made one by one."""
    make = nnx.transform_metadata(lambda k: block(key=k), in_axes=0, out_axes=0, partition="layers")
    keys = jax.random.split(key, n)
    graph, one, own = nnx.split(jax.vmap(make)(keys), shared, ...)
    if one:  # a compiled program makes neither the rest of this block nor those copies
        one, _ = nnx.state(block(key=keys[0]), shared, ...)
    return nnx.merge(graph, one, own)


def unrolled(body: Callable, state: PyTree, xs: PyTree, n: int) -> tuple[PyTree, PyTree]:
    """What lax.scan computes, as a Python loop."""
    out = []
    for i in range(n):
        state, y = body(state, jax.tree.map(operator.itemgetter(i), xs))
        out.append(y)
    return state, jax.tree.map(lambda *y: jnp.stack(y), *out)
