"""Masked tokens (BERT, Devlin et al. 2018, section 3.1): which pieces are predicted, and what is shown in their place.

B rows, L length, n real tokens of a row (CLS and SEP counted), k predicted ones, V vocabulary, N ordinary ids.
"""
import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError, at_least


def budget(n: np.ndarray, rate: float, cap: int | None) -> np.ndarray:
    """k: how many of n real tokens are predicted, as in BERT's own code: n * rate rounded half to even, at least 1, at most cap."""
    k = np.maximum(1, np.rint(np.multiply(n, rate))).astype(np.int64)
    return k if cap is None else np.minimum(k, cap)


def choose(free: np.ndarray, draws: np.ndarray, k: np.ndarray) -> np.ndarray:
    """bool [B, L]: k [B] of the places where `free`, uniformly without replacement: those with the smallest draws in [0, 1).

    All of them where there are no more than k.
    """
    draws = np.where(free, draws, 2.0)
    last = np.take_along_axis(np.sort(draws, axis=1), k[:, None] - 1, axis=1)
    return free & (draws <= last)


def show(
    targets: np.ndarray, action: np.ndarray, draws: np.ndarray, mask: tuple[int, float], random: tuple[np.ndarray, float]
) -> np.ndarray:
    """What stands in the place of each target: the id mask[0] at rate mask[1], one of the ids random[0] at rate random[1], else itself.

    One action and one draw in [0, 1) for each target, so that action and replacement do not depend on each other.
    """
    ids, rate = random
    other = ids[(draws * len(ids)).astype(np.int64)]
    return np.where(action < mask[1], mask[0], np.where(action < mask[1] + rate, other, targets))


@dataclasses.dataclass(frozen=True)
class Masking:
    """Corruption: CLS tokens SEP padded to `length`, a share of the pieces predicted, each piece masked on its own.

    budget() pieces are chosen (fewer where fewer can be); special ids, unk among them, never. Of those chosen a share `mask`
    is shown as MASK, a share `random` as a uniformly drawn ordinary id (which may be the same), the rest as they are; all are
    scored. Tokens beyond length - 2 are cut off.
    """

    vocabulary: Vocabulary
    length: int
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    cap: int | None = None
    types: bool = False  # also give token types, all 0

    def __post_init__(self):
        if self.cap is not None:
            at_least(1, cap=self.cap)
        if self.length < 3:
            raise UserError(f"masking needs rows of at least 3 tokens (CLS, one token, SEP), not {self.length}")
        if not (0 < self.rate <= 1 and 0 <= self.mask and 0 <= self.random and self.mask + self.random <= 1 + 1e-9):
            raise UserError(f"masking rates do not fit: rate {self.rate} in (0, 1], mask {self.mask} + random {self.random} <= 1")

    @property
    def features(self) -> tuple[str, ...]:
        return ("tokens", "targets", "weights", "segments") + (("types",) if self.types else ())

    @functools.cached_property
    def _ids(self) -> tuple[int, int, int, int, np.ndarray, np.ndarray]:
        """cls, sep, mask, pad; the ordinary ids [V - specials]; free [V]: may be chosen."""
        v = self.vocabulary
        missing = [name for name in ("cls", "sep", "mask", "pad") if getattr(v, name) is None]
        if missing or not len(v.ordinary):
            raise UserError(f"masking needs pieces and the symbols cls, sep, mask, pad; {v!r} lacks {', '.join(missing) or 'pieces'}")
        free = np.zeros(v.size, bool)
        free[v.ordinary] = True
        return v.cls, v.sep, v.mask, v.pad, v.ordinary, free

    def __getstate__(self) -> dict:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # not the tables: they are made again

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator, lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        return {key: x[0] for key, x in self.rows([example], [rng], lookup).items()}

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L]: each row depends on its own example and generator alone."""
        cls, sep, mask, pad, ordinary, free = self._ids
        targets = np.full((len(examples), self.length), pad, np.int32)
        targets[:, 0] = cls
        n, draws = np.empty(len(examples), np.int64), np.empty((len(examples), 3, self.length))
        for row, (example, rng) in enumerate(zip(examples, rngs, strict=True)):
            body = example["tokens"][: self.length - 2]
            n[row] = end = len(body) + 2
            targets[row, 1 : end - 1], targets[row, end - 1] = body, sep
            rng.random(out=draws[row])  # choice, action, replacement of each place
        chosen = choose(free[targets], draws[:, 0], budget(n, self.rate, self.cap))
        at, tokens = chosen.nonzero(), targets.copy()
        tokens[at] = show(targets[at], draws[:, 1][at], draws[:, 2][at], (mask, self.mask), (ordinary, self.random))
        segments = (np.arange(self.length) < n[:, None]).astype(np.int32)
        out = {"tokens": tokens, "targets": targets, "weights": chosen.astype(np.float32), "segments": segments}
        return out | {"types": np.zeros_like(tokens)} if self.types else out

    def readout(self) -> "Masking":
        """The same pieces, all shown as MASK: what a model knows from context alone."""
        return dataclasses.replace(self, mask=1.0, random=0.0)

    def bound(self, counts: np.ndarray) -> dict[str, float]:
        """no_context_bound for this corruption, from how often each id occurs, [V]."""
        return no_context_bound(counts[self._ids[4]], self.mask, self.random)


def no_context_bound(counts: np.ndarray, mask: float, random: float) -> dict[str, float]:
    """What is reached without any context, in nats, if targets are drawn from `counts` of the N ordinary ids [N].

    unigram: the entropy of p = counts / sum, the loss where every target is shown as MASK.
    bound: the loss of the best predictor that sees only what is shown in its own place. With r = random / N and
        keep = 1 - mask - random, target t is shown as s with probability p_t (r + keep [s = t]) and as MASK with p_t mask; the
        posterior is Bayes' rule. It is below the unigram entropy although it uses no context: kept pieces are copied.
    majority: the accuracy of always naming the most frequent id.
    """
    p = np.asarray(counts, np.float64)
    if p.min(initial=0) < 0 or p.sum() <= 0:
        raise ValueError("counts must be >= 0 and not all 0")
    p, keep, r = p / p.sum(), 1 - mask - random, random / len(p)
    plogp = np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0)
    log = lambda x: np.log(np.where(x > 0, x, 1))  # 0 log 0 = 0: a zero always multiplies it
    shown, same = r + keep * p, p * (r + keep)
    copied = -same * (log(same) - log(shown))
    others = -r * (plogp.sum() - plogp + (1 - p) * (log(np.full_like(p, r)) - log(shown)))
    entropy = -plogp.sum()
    return {"unigram": float(entropy), "bound": float(mask * entropy + copied.sum() + others.sum()), "majority": float(p.max())}
