"""Encoder-decoder losses: span corruption, denoising, translation.

B rows.
"""
from ptmjax.objectives.base import Losses, Nets, Objective, network, weighted
from ptmjax.types import Array, Batch, Keys, PyTree, at_least, fold


class Seq2Seq(Objective):
    """Cross entropy of `targets` at every position of the decoder where weights > 0 (Raffel et al. 2020, section 3.1.4).

    z: coefficient of the second loss `z_loss`, the mean of log(Z)^2 over the same positions, Z the softmax's denominator: it
    keeps scores from drifting away from log-probabilities (T5X: 1e-4). 0: none.
    """

    def __init__(self, z: float = 1e-4, head: str = "lm", net: str = "model"):
        at_least(0, **{"Seq2Seq.z": z})
        self.coefficients = {"z_loss": z} if z else {}
        self.head, self.net = head, net

    def weights(self, batch: Batch) -> dict[str, Array]:
        return dict.fromkeys(("seq2seq", *self.coefficients), batch["weights"].sum())

    def losses(self, nets: Nets, batch: Batch, keys: Keys, step: Array, carry: PyTree) -> Losses:
        net, key, w = network(nets, self.net), fold(keys.dropout, self.net), batch["weights"]
        h = net.decode(batch, net.encode(batch, key).state, key).state
        loss, hit, log_z = net.nll(self.head, h, batch["targets"])
        sums = {"seq2seq": weighted(loss, w)} | {name: weighted(log_z**2, w) for name in self.coefficients}
        return sums, carry, {"accuracy": weighted(hit, w)}
