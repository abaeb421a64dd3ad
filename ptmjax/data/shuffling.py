"""Shuffled words (StructBERT, Wang et al. 2020, arXiv 1908.04577, section 2.2): a few short runs of tokens are put in another order, and
the model is to say what stood at each place.

B rows, L length.
"""
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.corruption import Over
from ptmjax.data.masking import Masking
from ptmjax.data.pairs import Pairs
from ptmjax.types import UserError


@dataclasses.dataclass(frozen=True)
class Shuffled(Over):
    """Corruption: that of `inner`, and of the runs of `size` tokens that it leaves alone a share `share` is shuffled.

    A run is `size` neighbouring places that may be chosen and are not predicted; of all there are, overlapping ones too, share * their
    number (rounded half to even, at least 1) are drawn, without overlap, fewer where no more have room. Every order of a run is equally
    likely, the old one too. order_weights is 1 at its places, targets are the tokens as they were.

    The paper's 5 % of trigrams is read as a share of all of them; it does not say whether an order may stay as it was.
    """

    over = "inner"
    inner: Masking | Pairs
    share: float = 0.05
    size: int = 3

    def __post_init__(self):
        if not (0 < self.share <= 1 and self.size >= 2):
            raise UserError(f"shuffling: share {self.share} in (0, 1] of runs of {self.size} tokens, at least 2")

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.inner.features, "order_weights")

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L]: each row depends on its own example and generator, and on what inner reads."""
        rngs = list(rngs)
        out = self.inner.rows(examples, rngs, lookup)
        tokens, weights = out["tokens"].copy(), np.zeros_like(out["weights"])
        alone = np.isin(out["targets"], self.vocabulary.ordinary) & (out["weights"] == 0) & (out["segments"] > 0)
        for row, rng in enumerate(rngs):
            for at in self._runs(alone[row], rng):
                tokens[row, at] = rng.permutation(tokens[row, at])
                weights[row, at] = 1
        return out | {"tokens": tokens, "order_weights": weights}

    def _runs(self, alone: np.ndarray, rng: np.random.Generator) -> list[slice]:
        begins = np.flatnonzero(np.lib.stride_tricks.sliding_window_view(alone, self.size).all(1)) if len(alone) >= self.size else []
        found, taken, left = [], np.zeros(len(alone), bool), max(1, round(self.share * len(begins)))
        for begin in rng.permutation(begins):
            if len(found) == left:
                break
            at = slice(int(begin), int(begin) + self.size)
            if not taken[at].any():
                taken[at] = True
                found.append(at)
        return found
