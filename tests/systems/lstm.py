"""A recurrent language model: carry from segment to segment, aligned streams (Zaremba et al. 2014, section 4).

A text is a run of CLS list SEP list, 3 words a list and said twice, cut into segments of 12: every second segment begins with
the second saying of a list whose first lies in the segment before.
"""
import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.dropout import dropout
from ptmjax.nn.linear import Linear
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Objective, weighted
from ptmjax.training.build import Build
from ptmjax.types import constrain, fold
from tests.systems.harness import CLS, FIRST, SEP, SIZE, System, lists

L, D, VOCABULARY = 12, 64, 8


class Lstm(nnx.Module):
    """[B, L, D] -> [B, L, D]; memory is the cell and the last output, each [B, D]."""

    def __init__(self, width: int, *, key):
        self.width, self.gates = width, Linear(2 * width, 4 * width, ("embed", "mlp"), init="fan_in", key=key)

    def init_memory(self, rows, reach=None):
        return {"c": jnp.zeros((rows, self.width)), "h": jnp.zeros((rows, self.width))}

    def __call__(self, state, context, memory, key, capture):
        def cell(m, x):
            # Said, not left to the compiler: jax 0.10.2 on (2, 2, 2) in 4 micro-batches else gives gradients that are wrong by 2 %
            # (the forward pass is right): the four gates are cut out of an axis that lies over the mesh.
            i, f, g, o = jnp.split(constrain(self.gates(jnp.concatenate([x, m["h"]], -1)), "batch", None), 4, -1)
            c = jax.nn.sigmoid(f + 1) * m["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return {"c": c, "h": h}, h

        memory, y = jax.lax.scan(cell, memory, state.swapaxes(0, 1))
        return state + dropout(y.swapaxes(0, 1), 0.1, key), memory, {}


class NextToken(Objective):
    """Cross entropy of the next token; carry is whatever the network's blocks keep (LSTM cells, XL segments)."""

    def weights(self, batch):
        return {"lm": batch["weights"].sum()}

    def init_carry(self, nets, rows):
        return nets["model"].init_memory(rows)

    def losses(self, nets, batch, keys, step, carry):
        h, carry, _ = nets["model"].encode(batch, fold(keys.dropout, "model"), carry)
        loss, hit, _ = nets["model"].nll("lm", h, batch["targets"])
        return {"lm": weighted(loss, batch["weights"])}, carry, {"accuracy": weighted(hit, batch["weights"])}


@functools.cache
def segments(seed: int) -> list[dict]:
    """2048 records of L + 1 tokens, so that a stream of 64 begins with a list; the last token of one is the first of the next."""
    words = [r["words"][:3] % VOCABULARY + FIRST for r in lists(seed, 3072)]
    text = np.concatenate([np.r_[CLS, w, SEP, w] for w in words] + [[CLS]]).astype(np.int32)
    return [{"text": text[i : i + L + 1], "begin": i % 8} for i in range(0, len(text) - L, L)]


def shift(example, rng, lookup, *, recall: bool = False):
    """recall: score only words whose first saying lies in the segment before."""
    across = (np.arange(L) < 3) & (example["begin"] == 4)
    weights = (across if recall else np.ones(L)).astype(np.float32)
    return {"tokens": example["text"][:-1], "targets": example["text"][1:], "weights": weights}


def system(recall: bool = False) -> System:
    net = partial(Network, partial(Embedder, {"tokens": partial(Table, "tokens", SIZE, D, init="fan_in")}, D), None,
                  partial(Stack, [(partial(Lstm, D), 2)]), {"lm": partial(VocabularyHead, SIZE, D, act=None, init="fan_in")})
    return System(Build({"model": net}), NextToken(), partial(shift, recall=recall), segments, streams=True)
