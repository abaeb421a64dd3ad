"""Replaced-token detection.

B rows, L length, K slots, V vocabulary.
"""
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from ptmjax.objectives.base import Losses, Nets, Objective, check_scores, network, weighted
from ptmjax.types import Array, Batch, Keys, PyTree, Slots, Sum, at_least, cross_entropy, fold, slots


class Rtd(Objective):
    """ELECTRA (Clark et al. 2020, section 3): a generator's masked language model, and a discriminator that tells which tokens are
    not the original's once samples of the generator stand at the scored positions.

    Networks "generator" (head "mlm", in `slots` slots a row) and "discriminator" (head "rtd", one score a token, learnt over
    all tokens that are no padding). Samples carry no gradient, and one that equals the original is no replacement. A scored
    position that finds no slot (metric `overflow`, the share lost) shows the original. Sampling is from the softmax by
    categorical: an inverse cumulative sum would gather a sharded vocabulary.
    """

    def __init__(self, slots: int, coefficients: Mapping[str, float] = {"mlm": 1.0, "rtd": 50.0}):
        at_least(1, slots=slots)
        self.slots, self.coefficients = slots, dict(coefficients)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {"mlm": slots(batch["weights"], self.slots).weight.sum(), "rtd": real(batch).sum()}

    def losses(self, nets: Nets, batch: Batch, keys: Keys, step: Array, carry: PyTree) -> Losses:
        at = slots(batch["weights"], self.slots)
        net, targets = network(nets, "generator"), at.take(batch["targets"])
        scores = net.head("mlm", net.encode(batch, fold(keys.dropout, "generator")).state, at)
        mlm, hit, _ = cross_entropy(scores, targets)
        sampled = keys.sample.fold("rtd").each(jax.random.categorical, jax.lax.stop_gradient(scores))
        original = jnp.where(batch["weights"] > 0, batch["targets"], batch["tokens"])
        shown = put(original, at, sampled)
        replaced, w = (shown != original).astype(jnp.float32), real(batch)
        net = network(nets, "discriminator")
        h = net.encode({**batch, "tokens": shown}, fold(keys.dropout, "discriminator")).state
        score = net.head("rtd", h).astype(jnp.float32)
        check_scores("rtd", score.shape, (*shown.shape, 1))
        score = score[..., 0]
        rtd = optax.losses.sigmoid_binary_cross_entropy(score, replaced)
        metrics = {"generator_accuracy": weighted(hit, at.weight), "replaced": weighted(replaced, w),
                   "overflow": Sum(at.overflow.astype(jnp.float32), (batch["weights"] > 0).sum().astype(jnp.float32))}
        metrics |= detection(score > 0, replaced, w) | {"auc": area(score, replaced, w)}
        return {"mlm": weighted(mlm, at.weight), "rtd": weighted(rtd, w)}, carry, metrics


def real(batch: Batch) -> Array:
    """float32 [B, L]: 1 where a token is no padding."""
    return (batch["segments"] > 0).astype(jnp.float32)


def put(tokens: Array, at: Slots, new: Array) -> Array:
    """tokens [B, L] with new [B, K] at the places of the slots that are not empty."""
    one = lambda row, where, x, w: row.at[jnp.where(w > 0, where, len(row))].set(x, mode="drop")
    return jax.vmap(one)(tokens, at.where, new, at.weight)


def detection(found: Array, label: Array, w: Array) -> dict[str, Sum]:
    """Accuracy, precision, recall and F1 of bool `found` [B, L] against `label` (0 or 1) with weights, as ratios of sums."""
    both, ours, theirs = (found * label * w).sum(), (found * w).sum(), (label * w).sum()
    return {"rtd_accuracy": weighted(found == label, w), "precision": Sum(both, ours), "recall": Sum(both, theirs),
            "f1": Sum(2 * both, ours + theirs)}


def area(score: Array, label: Array, w: Array) -> Sum:
    """Area under the ROC curve of score [B, L] for label (0 or 1), within rows: of all pairs of a replaced and an original token
    of one row, the share in which the replaced one scores higher, a tie half; each pair by the product of its weights.

    Pairs across rows are left out, so that it adds over rows as every Sum does and needs no bins. B L^2 comparisons, which XLA
    fuses into the sum; nothing of that size is stored.
    """
    one, other = label * w, (1 - label) * w
    higher = (1 + jnp.sign(score[:, :, None] - score[:, None, :])) / 2
    return Sum((one[:, :, None] * other[:, None, :] * higher).sum(), (one.sum(1) * other.sum(1)).sum())
