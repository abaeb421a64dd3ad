"""Two tiny runs that hold all that a resume could lose: dropout, Adam's state, and in the LSTM a carry from batch to batch.

B rows, L length, D width.
"""
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ptmjax.data import loader, order
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.dropout import dropout
from ptmjax.nn.linear import Linear
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Encoding, Objective, weighted
from ptmjax.objectives.token import Mlm
from ptmjax.parallel.mesh import AXES, make_mesh
from ptmjax.training.build import Build
from ptmjax.training.checkpoint import leaves
from ptmjax.training.loop import Every, Stage, train
from ptmjax.training.optimizer import AdamW, linear
from ptmjax.training.state import TrainState
from ptmjax.types import fold

MASK, FIRST, SIZE = 1, 4, 60
LONGEST, D, ROWS = 32, 16, 8
HELDOUT = 21  # records; the last batch of 8 is filled up
EVERY = Every(log=1, evaluate=4, save=3)
RECORDS = [{"text": row} for row in np.random.default_rng(0).integers(FIRST, SIZE, (203, LONGEST + 1), dtype=np.int32)]


def mask(example: Mapping, rng: np.random.Generator, lookup: Sequence, length: int = 12) -> dict[str, np.ndarray]:
    """A quarter of the tokens shown as MASK."""
    text, scored = example["text"][:length], rng.permutation(length) < length // 4
    return {"tokens": np.where(scored, MASK, text).astype(np.int32), "targets": text, "weights": scored.astype(np.float32),
            "segments": np.ones(length, np.int32)}


def shift(example: Mapping, rng: np.random.Generator, lookup: Sequence, length: int = 12) -> dict[str, np.ndarray]:
    """The next token."""
    return {"tokens": example["text"][:length], "targets": example["text"][1 : length + 1], "weights": np.ones(length, np.float32)}


class Lstm(nnx.Module):
    """[B, L, D] -> [B, L, D]; memory is cell and output, each [B, D]."""

    def __init__(self, *, key):
        self.gates = Linear(2 * D, 4 * D, ("embed", "mlp"), init="fan_in", key=key)

    def init_memory(self, rows, reach=None):
        return {"c": jnp.zeros((rows, D)), "h": jnp.zeros((rows, D))}

    def __call__(self, state, context, memory, key, capture):
        def cell(m, x):
            i, f, g, o = jnp.split(self.gates(jnp.concatenate([x, m["h"]], -1)), 4, -1)
            c = jax.nn.sigmoid(f) * m["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return {"c": c, "h": h}, h

        memory, y = jax.lax.scan(cell, memory, state.swapaxes(0, 1))
        return state + dropout(y.swapaxes(0, 1), 0.2, key), memory, {}


class NextToken(Objective):
    def weights(self, batch):
        return {"lm": batch["weights"].sum()}

    def init_carry(self, nets, rows):
        return nets["model"].init_memory(rows)

    def losses(self, nets, batch, keys, step, carry):
        h, carry, _ = nets["model"].encode(batch, fold(keys.dropout, "model"), carry)
        loss, hit = nets["model"].nll("mlm", h, batch["targets"])
        return {"lm": weighted(loss, batch["weights"])}, carry, {"accuracy": weighted(hit, batch["weights"])}


def bert(frozen: Sequence[str] = (), width: int = D) -> tuple[Build, Objective]:
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", SIZE, width), "positions": partial(Positions, LONGEST, width)}, width)
    stack = partial(Stack, [(partial(Block, width, 8, 32), 2)])
    net = partial(Network, embedder, Context, stack, {"mlm": partial(VocabularyHead, SIZE, width)})
    return Build({"model": net}, {"model/heads/mlm/table": "model/embedder/parts/tokens/table"}, frozen), Encoding([Mlm(8)])


def lstm(frozen: Sequence[str] = ()) -> tuple[Build, Objective]:
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", SIZE, D)}, D)
    net = partial(Network, embedder, None, partial(Stack, [(Lstm, 2)]), {"mlm": partial(VocabularyHead, SIZE, D, act=None)})
    return Build({"model": net}, {}, frozen), NextToken()


def stage(system=bert, steps: int = 10, *, rows: int = ROWS, length: int = 12, frozen: Sequence[str] = (), micro: int = 1,
          records: Sequence[Mapping] = RECORDS, total: int = 0) -> Stage:
    """One stage of a run of `total` steps (0: of `steps`)."""
    build, objective = system(frozen)
    streams = system is lstm
    walk = order.Streams(len(records), rows, 1) if streams else order.Shuffled(len(records), 1)
    source = loader.Source(records, walk, partial(shift if streams else mask, length=length), 1, "tiny")
    batches = lambda sharding, rows, begin: loader.batches(source, rows, sharding, begin)
    heldout = lambda sharding, rows: loader.evaluation(source, rows, sharding, HELDOUT)
    return Stage(build, objective, AdamW(linear(1e-2, 2, total or steps)), batches, steps, rows, micro, {"heldout": heldout})


def mesh_of(*shape: int) -> jax.sharding.Mesh:
    return make_mesh(",".join(f"{axis}={n}" for axis, n in zip(AXES, shape)), jax.devices()[: math.prod(shape)])


def run(stages: Sequence[Stage], workdir: Path, shape: Sequence[int] = (1, 1, 1), every: Every = EVERY, say=print) -> TrainState:
    return train(stages, workdir, mesh_of(*shape), seed=3, every=every, say=say)


def arrays(state: TrainState) -> dict[str, np.ndarray]:
    """All of a state, keys as their words."""
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return {name: np.asarray(plain(x)) for name, x in leaves(state).items()}
