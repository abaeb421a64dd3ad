"""CBOW with negative samples (Mikolov et al. 2013): no stack, a head that scores candidates only.

A text walks a ring of notions, one or two on at each step; every notion has two words, drawn anew each time it is met. So the
two stand in the same contexts, and nothing else ties them.
"""
import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.objectives.base import Objective, weighted
from ptmjax.training.build import Build
from ptmjax.types import fold
from tests.systems.harness import FIRST, SIZE, WORDS, System

D, REACH = 32, 3
LENGTH = 2 * REACH + 1


@functools.cache
def ring(seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    notion = np.cumsum(rng.integers(1, 3, (2048, LENGTH)), 1) + rng.integers(0, WORDS // 2, (2048, 1))
    words = FIRST + 2 * (notion % (WORDS // 2)) + rng.integers(0, 2, notion.shape)
    return [{"words": w.astype(np.int32)} for w in words]


def window(example, rng, lookup):
    """The middle word is the label; of its neighbours those within a drawn distance are real (segments 1)."""
    near = np.abs(np.delete(np.arange(LENGTH) - REACH, REACH))
    return {"tokens": np.delete(example["words"], REACH), "segments": (near <= rng.integers(1, REACH + 1)).astype(np.int32),
            "label": example["words"][REACH], "row_weights": np.float32(1)}


class Cbow(Objective):
    """-log s(target) - sum over negatives log s(-negative); a negative that is the target does not count. noise: logits [V]."""

    def __init__(self, noise, negatives: int = 5):
        self.noise, self.negatives = noise, negatives

    def weights(self, batch):
        return {"cbow": batch["row_weights"].sum()}

    def losses(self, nets, batch, keys, step, carry):
        x, real = nets["model"].encode(batch, fold(keys.dropout, "model")).state, batch["segments"][..., None] > 0
        mean = (x * real).sum(1) / real.sum(1).clip(1)  # clip: rows that fill up a batch have no word
        negative = keys.sample.each(lambda k: jax.random.categorical(k, self.noise, shape=(self.negatives,)))
        score = nets["model"].head("out", mean, candidates=jnp.concatenate([batch["label"][:, None], negative], 1))
        counts = negative != batch["label"][:, None]
        loss = -jax.nn.log_sigmoid(score[:, 0]) - (jax.nn.log_sigmoid(-score[:, 1:]) * counts).sum(1)
        return {"cbow": weighted(loss, batch["row_weights"])}, carry, {}


def system() -> System:
    noise = np.where(np.arange(SIZE) < FIRST, -1e9, 0.0).astype(np.float32)
    net = partial(Network, partial(Embedder, {"tokens": partial(Table, "tokens", SIZE, D, init="fan_in")}, D, norm=None),
                  heads={"out": partial(VocabularyHead, SIZE, D, act=None, init="fan_in")})
    return System(Build({"model": net}), Cbow(noise), window, ring)
