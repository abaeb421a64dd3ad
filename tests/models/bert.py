"""A small BERT of awkward sizes and a batch for it: shared by the tests of models, objectives, parallel and training.

B rows, L length.
"""
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Block
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm, Sentence
from ptmjax.training.build import Build

part = functools.partial
TIES = {"model/heads/mlm/table": "model/embedder/parts/tokens/table"}
VOCAB, LENGTH, TYPES = 131, 37, 3


def network(vocab=VOCAB, width=24, heads=3, layers=3, hidden=40, *, length=LENGTH, types=TYPES, rate=0.0, see=masks.full, remat="none", loop=False,
            shared=()):
    """A factory of BERT with both heads; `rate` is every dropout rate."""
    parts = {"tokens": part(Table, "tokens", vocab, width), "positions": part(Positions, length, width),
             "types": part(Table, "types", types, width, vocabulary=False)}
    block = part(Block, width, heads, hidden, rate=rate, attention_rate=rate)
    return part(Network, part(Embedder, parts, width, rate=rate), part(Context, see), part(Stack, [(block, layers)], remat=remat, loop=loop, shared=shared),
                {"mlm": part(VocabularyHead, vocab, width), "nsp": part(Classifier, 2, width)})


def bert(*sizes, frozen=(), compute="float32", **options) -> Build:
    return Build({"model": network(*sizes, **options)}, TIES, frozen, compute)


def pretraining(slots: int = 6) -> Encoding:
    return Encoding([Mlm(slots), Sentence()])


def wild(build: Build, seed: int = 0) -> dict:
    """Parameters that hide nothing: random biases and norm gains, logits with a standard deviation above 1."""
    rng = np.random.default_rng(seed)

    def one(name, shape):
        kind = name.rsplit("/", 1)[-1]
        scale = {"kernel": 1.5 * math.prod(shape[-2:-1]) ** -0.5, "table": 0.7, "bias": 0.3, "scale": 0.2}[kind]
        return jnp.asarray(rng.normal(kind == "scale", scale, shape), jnp.float32)

    return {name: one(name, leaf.shape) for name, leaf in build.leaves.items()}


def batch(rows: int = 8, length: int = 19, scored: int = 4, seed: int = 0) -> dict:
    """Rows of unequal lengths (padding at the end), two types, `scored` positions a row and a label."""
    rng = np.random.default_rng(seed)
    real = np.arange(length) < rng.integers(length // 2, length + 1, (rows, 1))
    targets = rng.integers(5, VOCAB, (rows, length)) * real
    order = np.where(real, rng.random((rows, length)), 2).argsort(1)[:, :scored]
    weights = np.zeros((rows, length), np.float32)
    np.put_along_axis(weights, order, 1, 1)
    out = {"tokens": np.where(weights > 0, 4, targets), "targets": targets, "weights": weights, "segments": real * 1,
           "types": real * (np.arange(length) >= length // 3) * (1 + (np.arange(length) >= length // 2)), "label": rng.integers(0, 2, rows),
           "row_weights": np.ones(rows, np.float32), "index": np.arange(rows), "start": np.zeros(rows, bool)}
    return {name: jnp.asarray(x.astype(np.int32) if x.dtype == np.int64 else x) for name, x in out.items()}


def off(a, b) -> float:
    """max|a - b| / max|b|."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / np.abs(b).max())


def farthest(a: dict, b: dict) -> tuple[float, str]:
    """The largest off() over the leaves of two trees, and where it is; attention key biases, whose true gradient is 0, left out."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return max((off(x, y), jax.tree_util.keystr(path)) for (path, x), y in pairs if "key/bias" not in jax.tree_util.keystr(path))
