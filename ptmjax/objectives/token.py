"""Losses on tokens.

B rows, L length, K slots.
"""
from typing import Any

import jax

from ptmjax.objectives.base import check_scores, field, weighted
from ptmjax.types import Array, Batch, Keys, Slots, Sum, at_least, slots


class Mlm:
    """Masked language model (Devlin et al. 2019, section 3.1): cross entropy of `targets` where weights > 0, in K slots a row.

    A row with more scored positions than slots loses the rest: metric `overflow`, the share lost, is 0 in shipped runs.
    A second term of the kind takes another name, which its metrics then begin with, and another key of the batch for its weights:
    StructBERT's word order is Mlm(slots, name="order", scored="order_weights").
    """

    def __init__(self, slots: int, head: str = "mlm", name: str = "mlm", scored: str = "weights"):
        at_least(1, slots=slots)
        self.slots, self.head, self.name, self.scored = slots, head, name, scored

    def pick(self, batch: Batch) -> Slots:
        return slots(field(batch, self.scored, self.name), self.slots)

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {self.name: self.pick(batch).weight.sum()}

    def losses(self, net: Any, out: Any, batch: Batch, keys: Keys) -> tuple[dict[str, Sum], dict[str, Sum]]:
        at = self.pick(batch)
        loss, hit, _ = net.nll(self.head, out.state, at.take(batch["targets"]), at)
        overflow = Sum(at.overflow.astype(loss.dtype), (batch[self.scored] > 0).sum().astype(loss.dtype))
        prefix = "" if self.name == "mlm" else f"{self.name}_"
        return {self.name: weighted(loss, at.weight)}, {f"{prefix}accuracy": weighted(hit, at.weight), f"{prefix}overflow": overflow}


class Sentence:
    """Cross entropy of the row's `label` (next sentence, sentence order), each row by its row_weights.

    Metrics: accuracy, and the recall of every class, whose mean is the balanced accuracy. A head of another number of classes,
    or one that scores every position, is a UserError.
    """

    def __init__(self, name: str = "nsp", classes: int = 2):
        at_least(2, classes=classes)
        self.name, self.classes = name, classes

    def weights(self, batch: Batch) -> dict[str, Array]:
        return {self.name: batch["row_weights"].sum()}

    def losses(self, net: Any, out: Any, batch: Batch, keys: Keys) -> tuple[dict[str, Sum], dict[str, Sum]]:
        w = batch["row_weights"]
        check_scores(self.name, jax.eval_shape(lambda h: net.head(self.name, h), out.state).shape, (len(w), self.classes))
        loss, hit, _ = net.nll(self.name, out.state, batch["label"])
        recalls = {f"{self.name}_recall_{c}": weighted(hit, w * (batch["label"] == c)) for c in range(self.classes)}
        return {self.name: weighted(loss, w)}, {f"{self.name}_accuracy": weighted(hit, w)} | recalls
