"""Masked tokens (BERT, Devlin et al. 2019, section 3.1): rows, of which some pieces are predicted, and what is shown in their place.

B rows, L length, n real tokens of a row (CLS and SEP counted), m predicted pieces of a batch, V vocabulary, N ordinary ids.
"""
import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.choices import Choice, Laid, Tokens, bits, budget
from ptmjax.data.corruption import Corruption
from ptmjax.data.similar import Similar
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError, at_least, one_of


def lay(parts: Sequence[Sequence[np.ndarray]], length: int, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """CLS, then each part [m] (or [m, C]) of a row with SEP after it, padded: int32 [B, L] (or [B, L, C]), and the lengths, int64 [B]."""
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


def same(new: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """draws [m], those of one group (which begins where `new`) all the group's first."""
    return draws[np.flatnonzero(new)][np.cumsum(new) - 1]


def anywhere(draws: np.ndarray, lookup: Sequence[dict], free: np.ndarray) -> np.ndarray:
    """int32 [m]: for each draw in [0, 1) a piece of a random record, of those that may be chosen (free [V]); -1 where it has none."""
    out, x = np.full(len(draws), -1, np.int32), draws * len(lookup)
    for i, (record, u) in enumerate(zip(x.astype(np.int64).tolist(), (x % 1).tolist())):
        tokens = lookup[record]["tokens"]
        if len(tokens := tokens[free[tokens]]):
            out[i] = tokens[int(u * len(tokens))]
    return out


EACH = ("piece", "word", "unit")


@dataclasses.dataclass(frozen=True)
class Masking(Corruption):
    """Corruption: CLS tokens SEP padded to `length`, a share of the pieces predicted, some of them hidden.

    choices.budget() pieces are chosen by `choice` (single pieces, whole words, n-grams, spans); special ids, unk among them, never. Of
    those chosen a share `mask` is shown as MASK, a share `random` as an ordinary id drawn at random (which may be the same), the rest as
    they are; all are scored. Tokens beyond length - 2 are cut off. No place is chosen twice, so mask=.85, random=0 is the input of
    ELECTRA's generator as released but for its repeated places, and mask=1 the one of its paper (Clark et al. 2020, section 2).

    each: what draws how it is shown: each "piece" on its own (BERT, ALBERT), each "word" (RoBERTa's whole words, MacBERT), or each
        "unit" of the choice (SpanBERT: a span is masked, replaced or kept as a whole).
    similar: shows words as similar ones (MacBERT), at its own rate, which is added to mask and random.
    corpus: a random id is that of a random place of a random record (SpanBERT: about the unigram law), in place of a uniform one.
    bounds: also give left and right: of a predicted place the places before and behind its unit, which are never predicted themselves
        where units do not touch (choices.WordSpans); 0 elsewhere.
    types: also give token types, all 0.

    Departures from BERT's create_pretraining_data.py: there a replacement is any id of the vocabulary, specials and [unusedN] among
    them, and [UNK] can be chosen. Here neither: a symbol amid a text gives itself away, and "unknown" is nothing to be learnt. RoBERTa
    and XLM may choose <s> and </s> too.
    """

    vocabulary: Vocabulary
    length: int
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    cap: int | None = None
    types: bool = False
    choice: Choice = Tokens()
    each: str = "piece"
    similar: Similar | None = None
    corpus: bool = False
    bounds: bool = False

    def __post_init__(self):
        if self.cap is not None:
            at_least(1, cap=self.cap)
        one_of("each", self.each, EACH)
        if self.length < 3:
            raise UserError(f"masking needs rows of at least 3 tokens (CLS, one token, SEP), not {self.length}")
        similar = self.similar.rate if self.similar else 0.0
        if not (0 < self.rate <= 1 and 0 <= self.mask and 0 <= self.random and self.mask + self.random + similar <= 1 + 1e-9):
            more = f" + similar {similar}" if similar else ""
            raise UserError(f"masking rates do not fit: rate {self.rate} in (0, 1], mask {self.mask} + random {self.random}{more} <= 1")
        if self.similar and self.each != "word":
            raise UserError(f"similar words take the place of words: with Similar, each is 'word', not {self.each!r}")

    @property
    def features(self) -> tuple[str, ...]:
        more = {"left": self.bounds, "right": self.bounds, "types": self.types}
        return ("tokens", "targets", "weights", "segments", *(name for name, there in more.items() if there))

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
        """k of a full row, at most."""
        return int(budget(self.length, self.rate, self.cap, self.choice.rounding, 1 - 1e-9))

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L]: each row depends on its own example and generator alone (corpus: and on lookup)."""
        out = self.masked([(self.pieces(example)[: self.length - 2],) for example in examples], rngs, lookup)
        return out | {"types": np.zeros_like(out["tokens"])} if self.types else out

    def pieces(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """tokens [n]; where the record has columns that the choice reads, [n, 1 + columns]: the ids, and those."""
        marks = [example[column] for column in self.choice.columns if column in example]
        return np.stack([example["tokens"], *marks], 1) if marks else example["tokens"]

    def masked(self, parts: Sequence[Sequence[np.ndarray]], rngs: Iterable[np.random.Generator],
               lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """Rows of CLS part SEP part SEP ..., masked: tokens, targets, weights, segments [B, L]. The parts (pieces) must fit."""
        can, rngs = self._free, list(rngs)
        laid, n = lay(parts, self.length, self.vocabulary)
        targets = laid if laid.ndim == 2 else laid[..., 0].copy()
        marks = {} if laid.ndim == 2 else dict(zip(self.choice.columns, np.moveaxis(laid[..., 1:], -1, 0), strict=True))
        rows = Laid(targets, can.take(targets), self.vocabulary, marks)
        keys, raw = bits(rngs, len(parts), self.length, self._most)
        u = np.array([rng.random() for rng in rngs]) if self.choice.rounding == "chance" else 0.0
        units = self.choice.units(rows, budget(n, self.rate, self.cap, self.choice.rounding, u), keys, rngs)
        segments = (np.arange(self.length) < n[:, None]).astype(np.int32)
        out = {"tokens": self._shown(rows, units, raw, lookup), "targets": targets, "weights": (units > 0).astype(np.float32)}
        return out | {"segments": segments} | (edges(units) if self.bounds else {})

    def _shown(self, rows: Laid, units: np.ndarray, raw: np.ndarray, lookup: Sequence[dict]) -> np.ndarray:
        """int32 [B, L]: the ids with something else in the place of some that are predicted. Of a target's two draws in [0, 1), from its
        word of raw [B, most], the first says which of mask, random, similar (in this order of its range) it is, the second which id."""
        chosen = units > 0
        at, tokens = np.flatnonzero(chosen), rows.ids.copy()
        draws = raw[np.arange(self._most) < np.count_nonzero(chosen, axis=1)[:, None]].view(np.uint32).reshape(-1, 2) * 2.0**-32
        targets, (action, other) = rows.ids.ravel()[at], draws.T
        new = np.ones(len(at), bool)  # where what is shown in one way begins
        if self.each != "piece" and len(at):
            number = units if self.each == "unit" else np.cumsum(rows.first(), axis=1)
            group = np.stack([at // self.length, number.ravel()[at]])
            new = np.append(True, (np.diff(group) != 0).any(0))
            action = same(new, action)
        masked, anything = action < self.mask, action < self.mask + self.random
        if self.similar:
            pick = ~anything & (action < self.mask + self.random + self.similar.rate)
            targets, unknown = self.similar.swapped(targets, pick, new, other)
            anything = anything | unknown
        drawn = self._ordinary[(other * len(self._ordinary)).astype(np.int64)]
        if self.corpus:
            some = np.flatnonzero(anything & ~masked)
            found = anywhere(other[some], lookup, self._free)
            drawn[some] = np.where(found < 0, drawn[some], found)
        tokens.ravel()[at] = np.where(masked, self.vocabulary.mask, np.where(anything, drawn, targets))
        return tokens

    def readout(self) -> "Masking":
        """The same pieces, all shown as MASK: what a model knows from context alone."""
        return dataclasses.replace(self, mask=1.0, random=0.0, similar=None, corpus=False)

    @property
    def view(self) -> str:
        """Of a readout, how the scored places are shown, for the head of a table."""
        return ", every scored position shown as [MASK]" if self.mask == 1 else ""

    def bound(self, counts: np.ndarray) -> dict[str, float]:
        """no_context_bound for this corruption, from how often each id occurs, [V]; without the bound where replacements are no uniform
        ids (similar, corpus): what they give away is not known."""
        found = no_context_bound(counts[self._ordinary], self.mask, self.random)
        return {name: x for name, x in found.items() if name != "bound" or not (self.similar or self.corpus)}


def edges(units: np.ndarray) -> dict[str, np.ndarray]:
    """left and right int32 [B, L]: the places before and behind the unit of each place that has one, else 0."""
    length, place = units.shape[1], np.arange(units.shape[1])
    change = np.diff(units, axis=1) != 0
    begins, ends = np.pad(change, ((0, 0), (1, 0)), constant_values=True), np.pad(change, ((0, 0), (0, 1)), constant_values=True)
    left = np.maximum.accumulate(np.where(begins, place, 0), axis=1) - 1
    right = np.minimum.accumulate(np.where(ends, place, length)[:, ::-1], axis=1)[:, ::-1] + 1
    return {"left": np.where(units > 0, left, 0).astype(np.int32), "right": np.where(units > 0, right, 0).astype(np.int32)}


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
