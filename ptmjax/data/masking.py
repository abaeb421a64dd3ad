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


def choose_words(free: np.ndarray, word: np.ndarray, draws: np.ndarray, k: np.ndarray) -> np.ndarray:
    """bool [B, L]: whole words of together at most k [B] places, all the `free` ones of each.

    `word` [B, L] numbers the words of a row from 0, ascending. They are visited in the order of the draw at their first place,
    and one that has more free places than are left of k is passed over, as in BERT's own code: there may be less than k.
    """
    rows, length = free.shape
    first = np.diff(word, axis=1, prepend=-1) > 0
    size = np.bincount((word + length * np.arange(rows)[:, None]).ravel(), free.ravel(), rows * length).reshape(rows, length)
    when = np.full((rows, length), 2.0)
    when[first.nonzero()[0], word[first]] = draws[first]
    order = np.where(size > 0, when, 2.0).argsort(axis=1)
    sizes, taken, left = np.take_along_axis(size, order, 1), np.zeros((rows, length), bool), k.copy()
    for j in range((size > 0).sum(1).max(initial=0)):
        take = (sizes[:, j] > 0) & (sizes[:, j] <= left)
        taken[np.arange(rows), order[:, j]] = take
        left = left - np.where(take, sizes[:, j], 0)
        if not left.any():
            break
    return free & np.take_along_axis(taken, word, 1)


def lay(parts: Sequence[Sequence[np.ndarray]], length: int, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """CLS, then each part of a row with SEP after it, padded: int32 [B, L], and how long each row is, int64 [B]."""
    cls, sep, pad = vocabulary.cls, vocabulary.sep, vocabulary.pad
    out, n = np.full((len(parts), length), pad, np.int32), np.ones(len(parts), np.int64)
    out[:, 0] = cls
    for row, row_parts in enumerate(parts):
        at = 1
        for part in row_parts:
            out[row, at : at + len(part)] = part
            out[row, at + len(part)] = sep
            at += len(part) + 1
        n[row] = at
    return out, n


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
    scored. Tokens beyond length - 2 are cut off. No place is chosen twice, so mask=.85, random=0 is the input of ELECTRA's
    generator as released but for its repeated places, and mask=1 the one of its paper (Clark et al. 2020, section 2).

    whole: whole words are chosen (BERT's later flag): all pieces of a word that can be, or none; each piece still draws what
        is shown on its own. A word begins where the vocabulary says so, and at the first place of a row or part: in BERT's
        code a part that begins inside a word goes with the last word of the part before. Where every word has more pieces
        than the budget, none is chosen.
    """

    vocabulary: Vocabulary
    length: int
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    cap: int | None = None
    types: bool = False  # also give token types, all 0
    whole: bool = False

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
    def _free(self) -> np.ndarray:
        """bool [V]: may be chosen."""
        v = self.vocabulary
        missing = [name for name in ("cls", "sep", "mask", "pad") if getattr(v, name) is None]
        if missing or not len(v.ordinary):
            raise UserError(f"masking needs pieces and the symbols cls, sep, mask, pad; {v!r} lacks {', '.join(missing) or 'pieces'}")
        return np.isin(np.arange(v.size), v.ordinary)

    @functools.cached_property
    def _ordinary(self) -> np.ndarray:
        return self.vocabulary.ordinary

    def __getstate__(self) -> dict:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # not the tables: they are made again

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator, lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        return {key: x[0] for key, x in self.rows([example], [rng], lookup).items()}

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L]: each row depends on its own example and generator alone."""
        out = self.masked([(example["tokens"][: self.length - 2],) for example in examples], rngs)
        return out | {"types": np.zeros_like(out["tokens"])} if self.types else out

    def masked(self, parts: Sequence[Sequence[np.ndarray]], rngs: Iterable[np.random.Generator]) -> dict[str, np.ndarray]:
        """Rows of CLS part SEP part SEP ..., masked: tokens, targets, weights, segments [B, L]. The parts must fit."""
        free = self._free
        targets, n = lay(parts, self.length, self.vocabulary)
        draws = np.empty((len(parts), 3, self.length))
        for row, rng in zip(draws, rngs, strict=True):
            rng.random(out=row)  # choice, action, replacement of each place
        k = budget(n, self.rate, self.cap)
        choice = choose_words(free[targets], self._words(targets), draws[:, 0], k) if self.whole else choose(free[targets], draws[:, 0], k)
        at, tokens = choice.nonzero(), targets.copy()
        shown = (self.vocabulary.mask, self.mask), (self._ordinary, self.random)
        tokens[at] = show(targets[at], draws[:, 1][at], draws[:, 2][at], *shown)
        segments = (np.arange(self.length) < n[:, None]).astype(np.int32)
        return {"tokens": tokens, "targets": targets, "weights": choice.astype(np.float32), "segments": segments}

    def _words(self, targets: np.ndarray) -> np.ndarray:
        """Numbers of the words of each row, [B, L]: unk goes on with its word, every other special id stands alone."""
        alone = ~self._free[targets] & (targets != self.vocabulary.unk)
        begins = self.vocabulary.starts(targets.ravel()).reshape(targets.shape) | alone
        begins[:, 1:] |= alone[:, :-1]
        begins[:, 0] = True
        return np.cumsum(begins, axis=1) - 1

    def readout(self) -> "Masking":
        """The same pieces, all shown as MASK: what a model knows from context alone."""
        return dataclasses.replace(self, mask=1.0, random=0.0)

    @property
    def view(self) -> str:
        """Of a readout, how the scored places are shown, for the head of a table."""
        return ", every scored position shown as [MASK]" if self.mask == 1 else ""

    def bound(self, counts: np.ndarray) -> dict[str, float]:
        """no_context_bound for this corruption, from how often each id occurs, [V]."""
        return no_context_bound(counts[self._ordinary], self.mask, self.random)


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
