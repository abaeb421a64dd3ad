"""Two tiny runs that hold all that a resume could lose: dropout, Adam's state, and in the LSTM a carry from batch to batch.

B rows, L length, D width.
"""
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from ptmjax.data import loader, order
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Encoding, Objective
from ptmjax.objectives.token import Mlm
from ptmjax.parallel.mesh import AXES, make_mesh
from ptmjax.training.build import Build
from ptmjax.training.checkpoint import leaves
from ptmjax.training.loop import Every, Stage, train
from ptmjax.training.optimizer import AdamW
from ptmjax.training.schedules import linear
from ptmjax.training.state import TrainState
from tests.systems.lstm import Lstm, NextToken

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


def bert(frozen: Sequence[str] = (), width: int = D) -> tuple[Build, Objective]:
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", SIZE, width), "positions": partial(Positions, LONGEST, width)}, width)
    stack = partial(Stack, [(partial(Block, width, 8, 32), 2)])
    net = partial(Network, embedder, Context, stack, {"mlm": partial(VocabularyHead, SIZE, width)})
    return Build({"model": net}, {"model/heads/mlm/table": "model/embedder/parts/tokens/table"}, frozen), Encoding([Mlm(8)])


def lstm(frozen: Sequence[str] = ()) -> tuple[Build, Objective]:
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", SIZE, D)}, D)
    net = partial(Network, embedder, None, partial(Stack, [(partial(Lstm, D), 2)]), {"lm": partial(VocabularyHead, SIZE, D, act=None)})
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
