"""Which pieces of a row are predicted: single pieces, whole words, n-grams of words, spans, or one of these a row.

A choice gives units: int32 [B, L], 0 where nothing is predicted, else the number of what was chosen there in one piece (a word, an
n-gram, a span), rising along the row. B rows, L length, k [B] how many pieces are predicted of a row, n real tokens of a row.
"""
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError, at_least, one_of

LAST = np.uint32((1 << 32) - 1)  # the key of a place that cannot be chosen
ROUNDINGS = {
    "even": lambda x, u: np.rint(x),  # half to even, as BERT's own code
    "up": lambda x, u: np.ceil(x - 1e-9),  # as SpanBERT's; .15 * 20 is 3
    "chance": lambda x, u: np.floor(x + u),  # up with the chance of its fraction, as RoBERTa's: right on average
}


def budget(n: np.ndarray, rate: float, cap: int | None, rounding: str = "even", u: np.ndarray | float = 0.0) -> np.ndarray:
    """k: how many of n real tokens are predicted: n * rate, rounded (u in [0, 1) decides where by chance), at least 1, at most cap."""
    k = np.maximum(1, ROUNDINGS[rounding](np.multiply(n, rate), u)).astype(np.int64)
    return k if cap is None else np.minimum(k, cap)


# ------------------------------------------------------------------ rows
@dataclasses.dataclass(frozen=True)
class Laid:
    """Rows with their symbols: ids int32 and free (may be chosen) bool [B, L], marks: the records' columns, [B, L] each."""

    ids: np.ndarray
    free: np.ndarray
    vocabulary: Vocabulary
    marks: Mapping[str, np.ndarray]

    @functools.cached_property
    def alone(self) -> np.ndarray:
        """bool [B, L]: a symbol, which is no part of the text: nothing reaches over it."""
        return ~self.free & (self.ids != self.vocabulary.unk)

    def first(self, column: str = "words") -> np.ndarray:
        """bool [B, L]: where a word (or whatever the column marks) begins: as the column says, or the vocabulary where there is none
        and words are asked for; at every symbol and behind it; and at the row's first place. unk goes on with its word."""
        if column in self.marks:
            begins = self.marks[column] > 0
        elif column == "words":
            begins = self.vocabulary.starts(self.ids)
        else:
            raise UserError(f"records have no column {column!r}, which says where what is chosen begins: use a cut that marks it")
        begins = begins | self.alone
        begins[:, 1:] |= self.alone[:, :-1]
        begins[:, 0] = True
        return begins

    def rows(self, at: np.ndarray) -> "Laid":
        return Laid(self.ids[at], self.free[at], self.vocabulary, {name: x[at] for name, x in self.marks.items()})


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


# ------------------------------------------------------------------ choices
class Choice:
    """A frozen dataclass: `rounding` of the budget, `columns` of the records that it reads where they are there, and units()."""

    rounding: str = "even"
    columns: tuple[str, ...] = ()

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        """int32 [B, L] of at most k [B] free places; keys as bits() makes them, what else is drawn is drawn from rngs."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Tokens(Choice):
    """Single pieces, uniformly (BERT, Devlin et al. 2019): k of them, fewer where fewer can be chosen. rounding="chance" is RoBERTa's."""

    rounding: str = "even"

    def __post_init__(self):
        one_of("rounding", self.rounding, ROUNDINGS)

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        return choose(rows.free, keys, k) * np.arange(1, 1 + keys.shape[1], dtype=np.int32)


@dataclasses.dataclass(frozen=True)
class Words(Choice):
    """Whole words (BERT's later flag; Cui et al. 2019 for Chinese): all pieces of a word that can be, or none. A word begins where the
    record's `column` says so (windows.Segmented, windows.Tagged: phrases, entities), or for "words", where it has none, where the
    vocabulary does; and at the first place of a row or part: in BERT's code a part that begins inside a word goes with the last word
    of the part before. Where every word has more pieces than k, none is chosen.
    """

    column: str = "words"
    rounding: str = "even"

    def __post_init__(self):
        one_of("rounding", self.rounding, ROUNDINGS)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        first = rows.first(self.column)
        return choose_words(rows.free, first, keys, k) * np.cumsum(first, axis=1, dtype=np.int32)


def _check_shares(shares: Sequence[float]) -> None:
    if not (shares and all(0 <= share <= 1 for share in shares) and abs(sum(shares) - 1) < 1e-6):
        raise UserError(f"shares {tuple(shares)} of lengths 1, 2, ... must be at least 0 and sum to 1")


def inverse(most: int) -> tuple[float, ...]:
    """Shares of n = 1 .. most in proportion to 1 / n (ALBERT, Lan et al. 2020, section 4.1: .545, .273, .182 of 3)."""
    at_least(1, most=most)
    weights = [1 / n for n in range(1, 1 + most)]
    return tuple(w / sum(weights) for w in weights)


def geometric(p: float, most: int) -> tuple[float, ...]:
    """Shares of 1 .. most in proportion to p (1 - p)^(n - 1): a geometric law, renormalised and not clipped (SpanBERT)."""
    at_least(1, most=most)
    if not 0 < p < 1:
        raise UserError(f"p {p} of a geometric law must lie in (0, 1)")
    weights = [(1 - p) ** n for n in range(most)]
    return tuple(w / sum(weights) for w in weights)


@dataclasses.dataclass(frozen=True)
class Ngrams(Choice):
    """n consecutive words (or with words=False pieces) together, n = 1, 2, ... by `shares`: inverse(3) is ALBERT's, (.4, .3, .2, .1)
    MacBERT's (Cui et al. 2020), (.8, .1, .1) of pieces UniLM's (Dong et al. 2019). No two overlap; none reaches over a symbol.

    As in ALBERT's code: words are visited in random order, n is drawn among the lengths that the text still has from there (their
    shares in proportion), an n-gram that has a word of another's is passed over, one of more than what is left of k gives way to the
    longest shorter one that fits. A word begins as in Words; one without a piece that can be chosen ends the text before it.
    """

    shares: tuple[float, ...]
    words: bool = True
    column: str = "words"

    def __post_init__(self):
        object.__setattr__(self, "shares", tuple(self.shares))  # gin gives a list
        _check_shares(self.shares)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.words else ()

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        first = rows.first(self.column) if self.words else np.ones_like(rows.free)
        return np.stack([self._row(*row) for row in zip(first, rows.free, k.tolist(), keys, rngs)])

    def _row(self, first: np.ndarray, free: np.ndarray, left: int, keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        begin, size, reach = _words(first, free)
        law, taken, keys = np.cumsum(self.shares), np.zeros(len(size), np.int32), keys[begin[:-1]]
        for word, u in zip(np.argsort(keys).tolist(), rng.random(len(keys)).tolist()):
            if left <= 0:
                break
            if not (most := min(reach[word], len(law))):
                continue
            n = min(most, 1 + int(np.searchsorted(law[:most], u * law[most - 1], "right")))
            if taken[word : word + n].any():
                continue
            n = int((np.cumsum(size[word : word + n]) <= left).sum())
            taken[word : word + n] = word + 1
            left -= int(size[word : word + n].sum())
        return np.repeat(taken, np.diff(begin)) * free


@dataclasses.dataclass(frozen=True)
class WordSpans(Choice):
    """Spans of 1, 2, ... words with `shares` of lengths (SpanBERT, Joshi et al. 2020, section 3.1: geometric(.2, 10), mean 3.8).

    As in SpanBERT's code: a piece that is not yet chosen is drawn uniformly and the span begins with its word (so that long words are
    likelier); pieces chosen already count for nothing; the last span ends, maybe inside a word, where k is reached; k is rounded up. A
    span ends before a symbol. Spans that touch or overlap are one unit.
    """

    shares: tuple[float, ...] = geometric(0.2, 10)
    column: str = "words"
    rounding = "up"

    def __post_init__(self):
        object.__setattr__(self, "shares", tuple(self.shares))
        _check_shares(self.shares)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        first, law, chosen = rows.first(self.column), np.cumsum(self.shares), np.zeros(rows.free.shape, bool)
        for row, rng in enumerate(rngs):
            free, mine, left = rows.free[row], chosen[row], int(k[row])
            begin, _, reach = _words(first[row], free)
            word = np.cumsum(first[row]) - 1
            order = np.argsort(np.where(free, keys[row], LAST))[: np.count_nonzero(free)]
            for place, u in zip(order, rng.random(len(order))):
                if left <= 0:
                    break
                if mine[place]:
                    continue
                w = word[place]
                n = min(reach[w], 1 + int(np.searchsorted(law, u * law[-1], "right")))
                new = np.arange(begin[w], begin[w + n])
                new = new[free[new] & ~mine[new]][:left]
                mine[new] = True
                left -= len(new)
        return _runs(chosen)


def _words(first: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one row's W words: where they begin and the last ends [W + 1], how many free places each has [W], and how many consecutive
    words with free places there are from each on [W]."""
    begin = np.append(np.flatnonzero(first), len(first))
    size = np.diff(np.append(0, np.cumsum(free))[begin])
    number = np.arange(len(size))
    stop = np.minimum.accumulate(np.where(size > 0, len(size), number)[::-1])[::-1]
    return begin, size, stop - number


def _runs(chosen: np.ndarray) -> np.ndarray:
    """int32 [B, L]: the runs of chosen places, numbered along the row."""
    starts = chosen.copy()
    starts[:, 1:] &= ~chosen[:, :-1]
    return np.cumsum(starts, axis=1, dtype=np.int32) * chosen


@dataclasses.dataclass(frozen=True)
class Mixed(Choice):
    """One of several choices for each row, by `rates`: ERNIE's levels (Sun et al. 2019, arXiv 1904.09223: single characters, phrases,
    entities), which there take turns and here are drawn."""

    choices: tuple[Choice, ...]
    rates: tuple[float, ...]

    def __post_init__(self):
        for name in ("choices", "rates"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_shares(self.rates)
        if len(self.choices) != len(self.rates):
            raise UserError(f"{len(self.choices)} choices have {len(self.rates)} rates: give one to each")
        if len({choice.rounding for choice in self.choices}) > 1:
            raise UserError("choices of one mixture round their budgets in different ways: give all the same rounding")

    @property
    def rounding(self) -> str:
        return self.choices[0].rounding

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for choice in self.choices for column in choice.columns))

    def units(self, rows: Laid, k: np.ndarray, keys: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        which = np.searchsorted(np.cumsum(self.rates)[:-1], [rng.random() for rng in rngs], "right")
        out = np.zeros(rows.free.shape, np.int32)
        for number, choice in enumerate(self.choices):
            at = np.flatnonzero(which == number)
            if len(at):
                out[at] = choice.units(rows.rows(at), k[at], keys[at], [rngs[i] for i in at])
        return out
