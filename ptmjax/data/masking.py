"""Masked tokens (BERT, Devlin et al. 2018, section 3.1): which pieces are predicted, and what is shown in their place.

B rows, L length, n real tokens of a row (CLS and SEP counted), k predicted ones, V vocabulary, N ordinary ids.
"""
import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.corruption import Corruption
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError, at_least

LAST = np.uint32((1 << 32) - 1)  # the key of a place that cannot be chosen


def budget(n: np.ndarray, rate: float, cap: int | None) -> np.ndarray:
    """k: how many of n real tokens are predicted, as in BERT's own code: n * rate rounded half to even, at least 1, at most cap."""
    k = np.maximum(1, np.rint(np.multiply(n, rate))).astype(np.int64)
    return k if cap is None else np.minimum(k, cap)


def bits(rngs: Iterable[np.random.Generator], rows: int, length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """From each row's generator (of 64-bit words): keys uint32 [B, L], no two of a row alike, and uint64 [B, most], one a target.

    A key is random above and holds its place below, so that a tie goes to the earlier place: no place's chance moves by more than
    L / 2**31. Raw words, length / 2 + most of them a row, cost a third of that many numbers in [0, 1).
    """
    words = -(-length // 2)
    raw = np.empty((rows, words + most), np.uint64)
    for row, rng in zip(raw, rngs, strict=True):
        row[:] = rng.bit_generator.random_raw(words + most)
    keys = raw.view(np.uint32)[:, :length]
    keys &= ~low_bits(length)
    keys |= np.arange(length, dtype=np.uint32)
    return keys, raw[:, words:]


def low_bits(length: int) -> np.uint32:
    """The bits of a key that hold the place."""
    return np.uint32((1 << (length - 1).bit_length()) - 1)


def choose(free: np.ndarray, keys: np.ndarray, k: np.ndarray) -> np.ndarray:
    """bool [B, L]: k [B] of the places where `free`, uniformly without replacement: those with the smallest keys (bits).

    All of them where there are no more than k.
    """
    most = k.max(initial=1)
    least = np.sort(np.partition(np.where(free, keys, LAST), most - 1, axis=1)[:, :most], axis=1)
    return free & (keys <= least[np.arange(len(k)), k - 1][:, None])


def choose_words(free: np.ndarray, first: np.ndarray, keys: np.ndarray, k: np.ndarray) -> np.ndarray:
    """bool [B, L]: whole words of together at most k [B] places, all the `free` ones of each.

    `first` [B, L] says where a word begins; every row begins with one. They are visited in the order of the keys at their first
    places, and one that has more free places than are left of k is passed over, as in BERT's own code: there may be less than k.
    """
    rows, length = free.shape
    begin, low = np.flatnonzero(first), low_bits(length)
    size, chosen, left = np.zeros(rows * length, np.int64), np.zeros(rows * length, bool), k.copy()
    size[begin] = np.diff(np.append(0, np.cumsum(free))[np.append(begin, free.size)])
    some = size.reshape(free.shape) > 0
    order = np.sort(np.where(some, keys, keys | ~low), axis=1) & low  # last what has no free place
    for at in order.T[: np.count_nonzero(some, axis=1).max(initial=0)]:
        at = at + length * np.arange(rows)
        take = size[at] <= left
        left -= size[at] * take
        chosen[at] = take
        if not left.any():
            break
    return free & chosen[begin][np.cumsum(first) - 1].reshape(free.shape)


def lay(parts: Sequence[Sequence[np.ndarray]], length: int, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """CLS, then each part [m] (or [m, 2]) of a row with SEP after it, padded: int32 [B, L] (or [B, L, 2]), and the lengths, int64 [B]."""
    cls, sep, pad = vocabulary.cls, vocabulary.sep, vocabulary.pad
    out, n = np.full((len(parts), length, *parts[0][0].shape[1:]), pad, np.int32), np.ones(len(parts), np.int64)
    out[:, 0] = cls
    for row, row_parts in enumerate(parts):
        at = 1
        for part in row_parts:
            out[row, at : at + len(part)] = part
            out[row, at + len(part)] = sep
            at += len(part) + 1
        n[row] = at
    return out, n


def show(targets: np.ndarray, draws: np.ndarray, mask: tuple[int, float], random: tuple[np.ndarray, float]) -> np.ndarray:
    """What stands in the place of each target [m]: the id mask[0] at rate mask[1], one of the ids random[0] at rate random[1], else
    itself. Of its draws [m, 2] in [0, 1) the first says which, the second which id."""
    ids, rate = random
    action, other = draws.T
    other = ids[(other * len(ids)).astype(np.int64)]
    return np.where(action < mask[1], mask[0], np.where(action < mask[1] + rate, other, targets))


@dataclasses.dataclass(frozen=True)
class Masking(Corruption):
    """Corruption: CLS tokens SEP padded to `length`, a share of the pieces predicted, each piece masked on its own.

    budget() pieces are chosen (fewer where fewer can be); special ids, unk among them, never. Of those chosen a share `mask`
    is shown as MASK, a share `random` as a uniformly drawn ordinary id (which may be the same), the rest as they are; all are
    scored. Tokens beyond length - 2 are cut off. No place is chosen twice, so mask=.85, random=0 is the input of ELECTRA's
    generator as released but for its repeated places, and mask=1 the one of its paper (Clark et al. 2020, section 2).

    Departures from BERT's create_pretraining_data.py: there a replacement is any id of the vocabulary, specials and [unusedN] among
    them, and [UNK] can be chosen. Here neither: a symbol amid a text gives itself away, and "unknown" is nothing to be learnt.

    whole: whole words are chosen (BERT's later flag): all pieces of a word that can be, or none; each piece still draws what
        is shown on its own. A word begins where the record's column `words` says so (windows.Segmented), or where it has none,
        where the vocabulary does; and at the first place of a row or part: in BERT's code a part that begins inside a word goes
        with the last word of the part before. Where every word has more pieces than the budget, none is chosen.
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

    @functools.cached_property
    def _most(self) -> int:
        """k of a full row."""
        return int(budget(self.length, self.rate, self.cap))

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L]: each row depends on its own example and generator alone."""
        out = self.masked([(self.pieces(example)[: self.length - 2],) for example in examples], rngs)
        return out | {"types": np.zeros_like(out["tokens"])} if self.types else out

    def pieces(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """tokens [n]; where whole words are chosen and the record says where they begin, [n, 2]: the id, and that."""
        marked = self.whole and "words" in example
        return np.stack([example["tokens"], example["words"]], 1) if marked else example["tokens"]

    def masked(self, parts: Sequence[Sequence[np.ndarray]], rngs: Iterable[np.random.Generator]) -> dict[str, np.ndarray]:
        """Rows of CLS part SEP part SEP ..., masked: tokens, targets, weights, segments [B, L]. The parts (pieces) must fit."""
        can = self._free
        laid, n = lay(parts, self.length, self.vocabulary)
        targets = laid if laid.ndim == 2 else laid[..., 0].copy()
        free, k = can.take(targets), budget(n, self.rate, self.cap)
        keys, raw = bits(rngs, len(parts), self.length, self._most)
        choice = choose_words(free, self._first(laid, targets, free), keys, k) if self.whole else choose(free, keys, k)
        at, tokens = np.flatnonzero(choice), targets.copy()
        draws = raw[np.arange(self._most) < np.count_nonzero(choice, axis=1)[:, None]].view(np.uint32).reshape(-1, 2) * 2.0**-32
        tokens.ravel()[at] = show(targets.ravel()[at], draws, (self.vocabulary.mask, self.mask), (self._ordinary, self.random))
        segments = (np.arange(self.length) < n[:, None]).astype(np.int32)
        return {"tokens": tokens, "targets": targets, "weights": choice.astype(np.float32), "segments": segments}

    def _first(self, laid: np.ndarray, targets: np.ndarray, free: np.ndarray) -> np.ndarray:
        """bool [B, L]: where words begin: unk goes on with its word, every other special id stands alone."""
        alone = ~free & (targets != self.vocabulary.unk)
        begins = self.vocabulary.starts(targets) if laid.ndim == 2 else laid[..., 1] > 0
        begins = begins | alone
        begins[:, 1:] |= alone[:, :-1]
        begins[:, 0] = True
        return begins

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
