"""Two streams under a permutation with segment memory (Yang et al. 2019, sections 2.3 and 2.4).

Records of a stream say a list, then say it again: the first saying lies in the memory of the second. Positions are learned,
not relative: the content stream knows where each memory stood.
"""
import functools
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.random import fold_in

from ptmjax.models.context import Context
from ptmjax.models.embedders import Positions, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Block
from ptmjax.nn.dropout import dropout
from ptmjax.nn.param import param
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Objective, weighted
from ptmjax.training.build import Build
from ptmjax.types import fold, slots
from tests.systems.harness import SIZE, N, System, lists

D, SCORED = 64, 3


class TwoStreams(nnx.Module):
    """Content h: token and position; query g: position alone, [B, L, D] each."""

    def __init__(self, *, key):
        self.tokens = Table("tokens", SIZE, D, init="fan_in", key=fold_in(key, 0))
        self.places = Positions(N, D, init=0.1, key=fold_in(key, 1))
        self.query = param(fold_in(key, 2), (D,), ("embed",), 0.02)

    def __call__(self, batch, key):
        h = self.tokens(batch) + self.places(batch)
        g = jnp.broadcast_to(self.query[...] + self.places(batch), h.shape)
        return {"h": dropout(h, 0.1, fold(key, "h")), "g": dropout(g, 0.1, fold(key, "g"))}


class TwoStreamBlock(Block):
    """Both streams attend to the memory and to the content that the permutation lets them see, the content also to itself."""

    def __init__(self, reach: int, *, key):
        super().__init__(D, 4, 2 * D, place="pre", init="fan_in", key=key)
        self.reach = reach

    def init_memory(self, rows, reach=None):
        reach = self.reach if reach is None else reach
        return {"h": jnp.zeros((rows, reach, D)), "valid": jnp.zeros((rows, reach), bool)}

    def stream(self, x, over, see, key, capture=frozenset()):
        x, aux = self.residual(x, "attention", lambda q: self.attention(
            q, self.norms["attention"](over), see, rate=self.attention_rate, key=fold(key, "probs"), capture=capture), key)
        return self.residual(x, "mlp", lambda h: (self.mlp(h), {}), key)[0], aux

    def __call__(self, state, context, memory, key, capture):
        (rows, length, _), reach = state["h"].shape, memory["h"].shape[1]
        over, held = jnp.concatenate([memory["h"], state["h"]], 1), jnp.broadcast_to(memory["valid"][:, None], (rows, length, reach))
        see = lambda visible: jnp.concatenate([held, visible], -1)
        h, _ = self.stream(state["h"], over, see(context["see"] | jnp.eye(length, dtype=bool)), fold(key, "h"))
        g, aux = self.stream(state["g"], over, see(context["see"]), fold(key, "g"), capture)
        valid = jnp.concatenate([memory["valid"], jnp.ones((rows, length), bool)], 1)
        return {"h": h, "g": g}, {"h": over[:, length:], "valid": valid[:, length:]}, aux


class Permuted(Objective):
    def weights(self, batch):
        return {"plm": slots(batch["weights"], SCORED).weight.sum()}

    def init_carry(self, nets, rows):
        return nets["model"].init_memory(rows)

    def losses(self, nets, batch, keys, step, carry):
        state, carry, _ = nets["model"].encode(batch, fold(keys.dropout, "model"), carry)
        at = slots(batch["weights"], SCORED)
        loss, hit, _ = nets["model"].nll("lm", state["g"], at.take(batch["targets"]), at)
        return {"plm": weighted(loss, at.weight)}, carry, {"accuracy": weighted(hit, at.weight)}


@functools.cache
def said_twice(seed: int) -> list[dict]:
    return [{"words": r["words"], "again": again} for r in lists(seed, 1024) for again in (False, True)]


def permute(example, rng, lookup, *, recall: bool = False):
    """The last of a random order are scored; recall: of second sayings only."""
    rank = rng.permutation(N)
    scored = (rank >= N - SCORED) & (example["again"] | (not recall))
    return {"tokens": example["words"], "targets": example["words"], "weights": scored.astype(np.float32),
            "visible": rank[:, None] > rank[None, :]}


def system(recall: bool = False) -> System:
    net = partial(Network, TwoStreams, partial(Context, masks.given), partial(Stack, [(partial(TwoStreamBlock, N), 2)]),
                  {"lm": partial(VocabularyHead, SIZE, D, init="fan_in")})
    ties = {"model/heads/lm/table": "model/embedder/tokens/table"}
    return System(Build({"model": net}, ties), Permuted(), partial(permute, recall=recall), said_twice, streams=True)
