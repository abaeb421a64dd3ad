"""T5 (Raffel et al. 2020): an encoder-decoder on span corruption, with relative positions from one table a side.

The encoder reads list SEP list, the second with two spans of two words replaced by sentinels; the decoder writes them.
"""
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Block, Final
from ptmjax.nn.param import param
from ptmjax.nn.positions import positions
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Objective, weighted
from ptmjax.training.build import Build
from ptmjax.types import fold
from tests.systems.harness import CLS, MASK, SEP, SIZE, N, System, lists, pad

D, L, TARGETS = 64, 2 * N, 8
ONE, TWO = SIZE, SIZE + 1  # sentinels
EOS = MASK


class Relative(nnx.Module):
    """Batch -> [B or 1, H, L, L]: a scalar a head for every distance up to `reach` (T5's without the logarithmic buckets)."""

    def __init__(self, heads: int, reach: int, *, key):
        self.reach, self.table = reach, param(key, (2 * reach + 1, heads), (None, "heads"), 1.0)

    def __call__(self, batch):
        at = positions(batch)
        distance = jnp.clip(at[:, None, :] - at[:, :, None], -self.reach, self.reach)
        return jnp.moveaxis(self.table[...][distance + self.reach], -1, 1)


class Spans(Objective):
    def weights(self, batch):
        return {"span": batch["weights"].sum()}

    def losses(self, nets, batch, keys, step, carry):
        net, key = nets["model"], fold(keys.dropout, "model")
        h = net.decode(batch, net.encode(batch, key).state, key).state
        loss, hit = net.nll("lm", h, batch["targets"])
        return {"span": weighted(loss, batch["weights"])}, carry, {"accuracy": weighted(hit, batch["weights"])}


def spans(example, rng, lookup, *, recall: bool = False, apart: bool = False):
    """recall: score words only, not sentinels and EOS. apart: the first list as another packed example, out of sight."""
    words, i = example["words"], int(rng.integers(0, N - 4))
    j = int(rng.integers(i + 3, N - 1))
    row = [*words, SEP, *words[:i], ONE, *words[i + 2 : j], TWO, *words[j + 2 :]]
    target = [ONE, *words[i : i + 2], TWO, *words[j : j + 2], EOS]
    scored = np.isin(pad(target, TARGETS), (0, ONE, TWO, EOS), invert=True) if recall else np.arange(TARGETS) < len(target)
    segments = (np.arange(L) < len(row)).astype(np.int32) + (apart & (np.arange(L) < N))
    return {"tokens": pad(row, L), "segments": segments.astype(np.int32),
            "targets": pad(target, TARGETS), "weights": scored.astype(np.float32),
            "decoder_tokens": pad([CLS, *target[:-1]], TARGETS), "decoder_segments": (np.arange(TARGETS) < len(target)).astype(np.int32)}


def side(see, cross: bool):
    """Embedder, context and stack of one side."""
    block = partial(Block, D, 4, 2 * D, act="relu", norm="rms", eps=1e-6, place="pre", bias=False, cross=cross, init="fan_in")
    return (partial(Embedder, {"tokens": partial(Table, "tokens", SIZE + 2, D, init=1.0)}, D, norm=None),
            partial(Context, see, bias=partial(Relative, 4, L)), partial(Stack, [(block, 2), (partial(Final, D, norm="rms", eps=1e-6), 1)]))


def system(**view: bool) -> System:
    net = partial(Network, *side(masks.full, False), {"lm": partial(VocabularyHead, SIZE + 2, D, act=None, init="fan_in")},
                  decoder=partial(Network, *side(masks.causal, True)))
    return System(Build({"model": net}, {"model/decoder/embedder": "model/embedder"}), Spans(), partial(spans, **view), lists)
