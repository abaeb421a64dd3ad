"""Distillation (TinyBERT, Jiao et al. 2020): soft targets of a frozen teacher, and attention scores drawn together.

The student has half the width; it never reads a target.
"""
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from ptmjax.nn.stack import layer
from ptmjax.objectives.base import Objective, weighted
from ptmjax.training.build import Build
from ptmjax.types import fold, slots
from tests.systems.bert import SLOTS, coder, mlm, pairs, tied
from tests.systems.harness import System, lists

SCORES = frozenset({"scores"})


class Distil(Objective):
    """Kullback-Leibler divergence from the teacher's words to the student's in the slots; squared distance of attention scores.

    layers: (layer of the teacher, layer of the student).
    """

    def __init__(self, layers: Sequence[tuple[int, int]] = ((0, 0), (1, 1)), coefficients: Mapping[str, float] = {"scores": 0.02}):
        self.layers, self.coefficients = layers, dict(coefficients)

    def weights(self, batch):
        return {"soft": slots(batch["weights"], SLOTS).weight.sum(), "scores": (batch["segments"] > 0).sum().astype(jnp.float32)}

    def losses(self, nets, batch, keys, step, carry):
        at, real = slots(batch["weights"], SLOTS), (batch["segments"] > 0).astype(jnp.float32)
        t = nets["teacher"].encode(batch, None, capture=SCORES)
        s = nets["student"].encode(batch, fold(keys.dropout, "student"), capture=SCORES)
        log_t, log_s = (jax.nn.log_softmax(nets[n].head("mlm", out.state, at)) for n, out in (("teacher", t), ("student", s)))
        gap = sum((layer(t.aux, "scores", i) - layer(s.aux, "scores", j)) ** 2 for i, j in self.layers).mean(1)  # over heads: [B, L, L]
        gap = (gap * real[:, None]).sum(-1) / real.sum(-1, keepdims=True).clip(1)
        agree = (log_t.argmax(-1) == log_s.argmax(-1)).astype(jnp.float32)
        sums = {"soft": weighted((jnp.exp(log_t) * (log_t - log_s)).sum(-1), at.weight), "scores": weighted(gap, real)}
        return sums, carry, {"agreement": weighted(agree, at.weight)}


def system(**shown: float) -> System:
    nets = {"teacher": coder(64, 2, {"mlm": mlm(64)}), "student": coder(32, 2, {"mlm": mlm(32)})}
    return System(Build(nets, tied("teacher") | tied("student"), frozen=["teacher/*"]), Distil(), partial(pairs, **shown), lists)
