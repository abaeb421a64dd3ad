"""Encoder-decoder losses: span corruption, denoising, translation.

B rows, L length of the decoder's side, V vocabulary.
"""
import jax
import jax.numpy as jnp

from ptmjax.objectives.base import Losses, Nets, Objective, weighted
from ptmjax.types import Array, Batch, Keys, PyTree, at_least, fold


class Seq2Seq(Objective):
    """Cross entropy of `targets` at every position of the decoder where weights > 0 (Raffel et al. 2020, section 3.1.4).

    z: coefficient of the second loss `z_loss`, the mean of log(Z)^2 over the same positions, Z the softmax's denominator: it
    keeps scores from drifting away from log-probabilities (T5X: 1e-4). 0: none, and the head's own nll.
    """

    def __init__(self, z: float = 1e-4, head: str = "lm", net: str = "model"):
        at_least(0, **{"Seq2Seq.z": z})
        self.coefficients = {"z_loss": z} if z else {}
        self.head, self.net = head, net

    def weights(self, batch: Batch) -> dict[str, Array]:
        return dict.fromkeys(("seq2seq", *self.coefficients), batch["weights"].sum())

    def losses(self, nets: Nets, batch: Batch, keys: Keys, step: Array, carry: PyTree) -> Losses:
        net, key, w = nets[self.net], fold(keys.dropout, self.net), batch["weights"]
        h = net.decode(batch, net.encode(batch, key).state, key).state
        if not self.coefficients:
            loss, hit = net.nll(self.head, h, batch["targets"])
            return {"seq2seq": weighted(loss, w)}, carry, {"accuracy": weighted(hit, w)}
        scores = net.head(self.head, h)  # once for both losses: nll() would not tell log Z
        log_z = jax.nn.logsumexp(scores, -1)
        loss = log_z - jnp.take_along_axis(scores, batch["targets"][..., None], -1)[..., 0]
        hit = (scores.argmax(-1) == batch["targets"]).astype(loss.dtype)
        return {"seq2seq": weighted(loss, w), "z_loss": weighted(log_z**2, w)}, carry, {"accuracy": weighted(hit, w)}
