"""ELECTRA (Clark et al. 2020): a generator's samples inside the losses, a discriminator, shared tables."""
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import optax

from ptmjax.models.heads import Classifier
from ptmjax.nn.linear import Linear
from ptmjax.objectives.base import Objective, weighted
from ptmjax.training.build import Build
from ptmjax.types import fold, slots
from tests.systems.bert import SLOTS, coder, mlm, pairs, tied
from tests.systems.harness import System, lists


class Rtd(Objective):
    """Masked words of the generator, and which words of the filled-in row are not the original's: by inequality, on real positions."""

    def __init__(self, coefficients: Mapping[str, float] = {"rtd": 50.0}):
        self.coefficients = dict(coefficients)

    def weights(self, batch):
        return {"mlm": slots(batch["weights"], SLOTS).weight.sum(), "rtd": (batch["segments"] > 0).sum().astype(jnp.float32)}

    def losses(self, nets, batch, keys, step, carry):
        generator, discriminator, at = nets["generator"], nets["discriminator"], slots(batch["weights"], SLOTS)
        logits = generator.head("mlm", generator.encode(batch, fold(keys.dropout, "generator")).state, at)
        mlm = optax.losses.softmax_cross_entropy_with_integer_labels(logits, at.take(batch["targets"]))
        sampled = keys.sample.each(jax.random.categorical, jax.lax.stop_gradient(logits))
        original = jnp.where(batch["weights"] > 0, batch["targets"], batch["tokens"])
        put = lambda row, where, new, w: row.at[jnp.where(w > 0, where, len(row))].set(new, mode="drop")
        fake = jax.vmap(put)(original, at.where, sampled, at.weight)
        replaced, real = (fake != original).astype(jnp.float32), (batch["segments"] > 0).astype(jnp.float32)
        h = discriminator.encode({**batch, "tokens": fake}, fold(keys.dropout, "discriminator")).state
        score = discriminator.head("rtd", h)[..., 0]
        found = (score > 0) * real
        sums = {"mlm": weighted(mlm, at.weight), "rtd": weighted(optax.losses.sigmoid_binary_cross_entropy(score, replaced), real)}
        metrics = {"recall": weighted(found, replaced), "precision": weighted(replaced, found), "replaced": weighted(replaced, real)}
        return sums, carry, metrics


def system(frozen: Sequence[str] = (), **shown: float) -> System:
    nets = {"generator": coder(32, 1, {"mlm": mlm(32, 64)}, embed=64, project=partial(Linear, 64, 32, (None, "embed"), init="fan_in")),
            "discriminator": coder(64, 2, {"rtd": partial(Classifier, 1, 64, first=False, act="gelu", init="fan_in")})}
    ties = tied("generator") | {"discriminator/embedder": "generator/embedder"}
    return System(Build(nets, ties, frozen), Rtd(), partial(pairs, **shown), lists)
