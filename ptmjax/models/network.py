"""A network: embedder + context + stack [+ decoder] + named heads.

B rows, L length, N layers of a group.
"""
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from flax import nnx

from ptmjax.types import Array, Batch, Key, PyTree, Slots, UserError, fold, one_of


class Encoded(NamedTuple):
    state: PyTree  # [B, L, D], or whatever tree the blocks carry
    memory: PyTree  # leaves [B, N, ...], rows first, as carry holds them
    aux: list  # one dict a group: what `capture` asked for, leaves [N, B, ...]


class Network(nnx.Module):
    """Every argument is a factory that takes `key`. `project` maps the embedder's width to the stack's.

    A decoder is a network without heads: it reads the decoder's side of the batch under the plain names (tokens,
    segments, positions) beside `encoded`, so embedders, masks and blocks serve both sides.
    """

    def __init__(self, embedder: Callable, context: Callable | None = None, stack: Callable | None = None,
                 heads: Mapping[str, Callable] = {}, *, project: Callable | None = None, decoder: Callable | None = None, key: Array):
        ks = jax.random.split(key, 5 + len(heads))
        make = lambda factory, k: None if factory is None else factory(key=k)
        self.embedder, self.context, self.stack = make(embedder, ks[0]), make(context, ks[1]), make(stack, ks[2])
        self.project, self.decoder = make(project, ks[3]), make(decoder, ks[4])
        self.heads = nnx.Dict({name: make(head, k) for (name, head), k in zip(sorted(heads.items()), ks[5:])})

    def encode(self, batch: Batch, key: Key | None = None, memory: PyTree = None, capture: frozenset[str] = frozenset()) -> Encoded:
        """key None is evaluation (no dropout); memory as init_memory gives it, or as the last segment left it."""
        state = self.embedder(batch, fold(key, "embedder"))
        if self.project is not None:
            state = jax.tree.map(self.project, state)
        if self.stack is None:
            return Encoded(state, memory, [])
        context = {} if self.context is None else self.context(batch)
        turn = lambda tree: jax.tree.map(lambda x: x.swapaxes(0, 1), tree)
        state, memory, aux = self.stack(state, context, turn(memory), fold(key, "stack"), capture)
        return Encoded(state, turn(memory), aux)

    def decode(self, batch: Batch, encoded: PyTree, key: Key | None = None, memory: PyTree = None,
               capture: frozenset[str] = frozenset()) -> Encoded:
        """The decoder over `encoded`, the state of encode(); UserError where there is none."""
        if self.decoder is None:
            raise UserError("the objective asks for a decoder and the network has none: give Network.decoder, or another objective")
        side = {name.removeprefix("decoder_"): x for name, x in batch.items() if name.startswith("decoder_")}
        side |= {"encoded": encoded, "encoded_segments": batch["segments"]}
        return self.decoder.encode(side, fold(key, "decoder"), memory, capture)

    def init_memory(self, rows: int, reach: int | None = None) -> PyTree:
        return None if self.stack is None else self.stack.init_memory(rows, reach)

    def head(self, name: str, h: Array, where: Slots | None = None, candidates: Array | None = None) -> Array:
        """Scores [..., V] or [..., C]: of all positions or of the slots, of all classes or of candidates [..., C]."""
        return self.named(name)(h, where, candidates)

    def named(self, name: str) -> Callable:
        """A head; UserError where the network has none of that name."""
        one_of("head", name, self.heads)
        return self.heads[name]

    def nll(self, name: str, h: Array, targets: Array, where: Slots | None = None) -> tuple[Array, Array, Array]:
        """(cross entropy, hit, log Z) of targets; a head may have its own way (adaptive, chunked, vocabulary-parallel)."""
        return self.named(name).nll(h, targets, where)
