"""Span corruption (T5, Raffel et al. 2020, section 3.1.4): runs of tokens give way to sentinels, the decoder writes them.

B rows, L inputs, L' targets, n tokens of a row before corruption, k noise tokens of them, s spans. A flat array holds the rows of
a batch one behind the other, without padding.
"""
import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.corruption import Corruption
from ptmjax.data.masking import no_context_bound
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError, at_least


def counts(n: np.ndarray, rate: float, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """(k, s) of n tokens: n * rate noise tokens in k / mean spans, both rounded half to even, as T5's.

    k is 1..n-1 and s at least 1, in T5 too; here s is also at most what k and n - k can be parted into. A text of one token is
    all noise (T5 leaves it whole and its target empty), one of none has no span.
    """
    n = np.asarray(n, np.int64)
    noise = np.clip(np.rint(n * rate).astype(np.int64), 1, np.maximum(n - 1, 1))
    spans = np.clip(np.rint(noise / mean).astype(np.int64), 1, np.maximum(1, np.minimum(noise, n - noise)))
    return np.minimum(noise, n), np.minimum(spans, n)


def lengths(inputs: int, rate: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """(raw, targets): the most tokens that become at most `inputs` ones, and the targets of that many; EOS counted in both.

    Departure: at rate .5 T5 takes a token less where that makes both equally long.
    """
    _check(rate, mean)
    at_least(3, inputs=inputs)  # a token, a sentinel, EOS
    n = np.arange(2, 1 + int((inputs + 2) / (1 - rate)))
    noise, spans = counts(n, rate, mean)
    last = (n - noise + spans + 1 <= inputs).nonzero()[0][-1]
    return int(n[last]), int(noise[last] + spans[last] + 1)


def _check(rate: float, mean: float) -> None:
    if not (0 < rate < 1 and mean >= 1):
        raise UserError(f"span corruption: rate {rate} must lie in (0, 1) and the mean length of a span, {mean}, be at least 1")


def noise(length: int, rate: float, mean: float, rng: np.random.Generator) -> np.ndarray:
    """bool [length]: which tokens are noise. T5's two random partitions: k noise tokens into s spans and the other tokens into s
    runs, each partition with equal chance, in turn, beginning with a run of the others: so the last token is always noise, and a
    text short enough for one span loses its end in every epoch, as in T5."""
    return _hidden(*_parts(np.array([length]), rate, mean, [rng])[1:])


def _hidden(keep: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """bool, flat: keep[0] times no, gone[0] times yes, keep[1] times no, ..."""
    return np.repeat(np.arange(2 * len(keep)) % 2 > 0, np.stack([keep, gone], 1).ravel())


def _parts(n: np.ndarray, rate: float, mean: float, rngs: Iterable[np.random.Generator]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """s [B], and of each span, flat: how many tokens stay before it, and how many it has."""
    m = np.where(n == 1, 2, n)  # a single token is split as if one stood before it
    noise, spans = counts(m, rate, mean)
    most = max(1, spans.max(initial=1))
    draws = np.zeros((len(n), 2, most - 1))
    for row, rng, s in zip(draws, rngs, spans.tolist(), strict=True):
        if s == most:
            rng.random(out=row)
        elif s > 1:
            row[:, : s - 1] = rng.random((2, s - 1))
    items = np.stack([m - noise, noise], 1).ravel()
    found = _partition(items, np.repeat(spans, 2), draws.reshape(2 * len(n), most - 1)).reshape(len(n), 2, most)
    found[n == 1, 0] = 0
    real = np.arange(most) < spans[:, None]
    return spans, found[:, 0][real], found[:, 1][real]


def _partition(items: np.ndarray, parts: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """int64 [R, S]: each row's items in its number of parts, none empty, every partition with equal chance; 0 beyond the parts.

    parts - 1 of the items - 1 places between items are cut, by Floyd's sampling without replacement (Bentley and Floyd 1987),
    all rows abreast: it needs S draws a row in [0, 1), [R, S - 1], where sorting would need one for every item.
    """
    places, k = np.maximum(items - 1, 0), parts - 1
    row = np.arange(len(items)) * (places.max(initial=0) + 1)  # where a row's places begin in `taken`
    last = np.minimum(places - k + np.arange(draws.shape[1])[:, None], places)  # rows whose cuts are done go on without effect
    cuts, taken = (draws.T * (last + 1)).astype(np.int64, order="C") + row, np.zeros(row[-1:].sum() + places.max(initial=0) + 1, bool)
    for cut, instead in zip(cuts, last + row):
        np.copyto(cut, instead, where=taken[cut])
        taken[cut] = True
    cuts = np.where(np.arange(draws.shape[1])[:, None] < k, cuts - row + 1, items)
    return np.diff(np.sort(np.vstack([cuts, items]).T, axis=1), axis=1, prepend=0)


def _number(spans: np.ndarray) -> np.ndarray:
    """0, 1, .. s-1 of each row, flat."""
    return np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)


@dataclasses.dataclass(frozen=True)
class Spans(Corruption):
    """Corruption: a text of up to `raw` tokens to inputs and targets, padded to `inputs` and `targets`, EOS behind both.

    In the inputs each noise span is one sentinel, in the targets the span follows its sentinel; sentinels count down from the
    last id. decoder_tokens are the targets one place on, after the pad id. `raw` is lengths(inputs) and `targets` follows
    where None. Tokens beyond `raw` are cut off. Loss on all targets, sentinels and EOS among them; with `first`, on the
    first token of each span alone. A text of one token is all target; one of none gives EOS on both sides.
    """

    vocabulary: Vocabulary
    inputs: int
    targets: int | None = None
    rate: float = 0.15
    mean: float = 3.0
    first: bool = False
    features = ("tokens", "segments", "decoder_tokens", "decoder_segments", "targets", "weights")

    def __post_init__(self):
        raw, targets = lengths(self.inputs, self.rate, self.mean)
        if self.targets is None:
            object.__setattr__(self, "targets", targets)
        if self.targets < targets:
            raise UserError(f"{self.inputs} inputs of span corruption give {targets} targets, {self.targets} are too few: leave it out")
        spans = int(counts(raw, self.rate, self.mean)[1])
        if spans > self.vocabulary.sentinels:
            raise UserError(f"span corruption of {raw} tokens makes {spans} spans, {self.vocabulary!r} has {self.vocabulary.sentinels} "
                            "sentinels: give it more, or shorter rows, a smaller rate or longer spans")

    @property
    def raw(self) -> int:
        """n: tokens of a full row, the length to cut the text into."""
        return lengths(self.inputs, self.rate, self.mean)[0]

    @functools.cached_property
    def _ids(self) -> tuple[int, int, np.ndarray, np.ndarray, int]:
        """eos, pad; the ordinary ids; bool [V]: is ordinary; raw."""
        v = self.vocabulary
        missing = [name for name in ("eos", "pad") if getattr(v, name) is None]
        if missing:
            raise UserError(f"span corruption needs the symbols eos and pad; {v!r} lacks {', '.join(missing)}")
        return v.eos, v.pad, v.ordinary, np.isin(np.arange(v.size), v.ordinary), self.raw

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L] and [B, L']: each row depends on its own example and generator alone."""
        eos, pad, _, ordinary, raw = self._ids
        texts = [example["tokens"][:raw] for example in examples]
        n = np.array([len(text) for text in texts], np.int64)
        spans, keep, gone = _parts(n, self.rate, self.mean, rngs)
        hidden = _hidden(keep, gone)
        tokens, sentinel = np.concatenate(texts), (self.vocabulary.size - 1 - _number(spans)).astype(np.int32)
        row = np.repeat(np.arange(len(n)), spans)
        seen = np.bincount(row, keep, len(n)).astype(np.int64) + spans + 1  # the lengths of inputs and of targets
        told = n - seen + 2 * spans + 2
        inputs = _place(tokens[~hidden], np.cumsum(keep + 1) - 1 + row, sentinel, np.cumsum(seen) - 1, eos)
        targets = _place(tokens[hidden], np.cumsum(gone + 1) - gone - 1 + row, sentinel, np.cumsum(told) - 1, eos)
        (inputs, segments), (targets, decoder) = _pad(inputs, seen, self.inputs, pad), _pad(targets, told, self.targets, pad)
        shifted = np.full_like(targets, pad)
        np.copyto(shifted[:, 1:], targets[:, :-1], where=decoder[:, 1:] > 0)
        scored = ordinary[targets] & (shifted >= self.vocabulary.size - self.vocabulary.sentinels) if self.first else decoder
        return {"tokens": inputs, "segments": segments, "decoder_tokens": shifted, "decoder_segments": decoder,
                "targets": targets, "weights": scored.astype(np.float32)}

    def readout(self) -> "Spans":
        """The same spans, the first token of each scored: there, behind its sentinel, some word stands for certain. Sentinels and
        EOS follow from the form, not from the language; and further on a model that knows the word still has to share its
        belief with the span's end, against which no unigram can be held."""
        return dataclasses.replace(self, first=True)

    @property
    def view(self) -> str:
        """Of a readout, what is scored, for the head of a table."""
        return ", the first token of every span alone" if self.first else ""

    def bound(self, counts: np.ndarray) -> dict[str, float]:
        """unigram and majority of the words, as in no_context_bound, from how often each id occurs, [V]. No word can be copied,
        so there is no bound below the unigram; and none is known for the sentinels and EOS that training scores as well."""
        found = no_context_bound(counts[self._ids[2]], mask=1.0, random=0.0)
        return {name: found[name] for name in ("unigram", "majority")}


def _place(words: np.ndarray, at: np.ndarray, sentinel: np.ndarray, ends: np.ndarray, eos: int) -> np.ndarray:
    """Flat: sentinels at their places, EOS at the ends, the words in order everywhere else."""
    out, other = np.empty(len(words) + len(at) + len(ends), np.int32), np.ones(len(words) + len(at) + len(ends), bool)
    other[at] = other[ends] = False
    out[at], out[ends], out[other] = sentinel, eos, words
    return out


def _pad(flat: np.ndarray, n: np.ndarray, length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows [B, length], which places are real, int32)."""
    if (n == length).all():  # as nearly always, where the text is cut by windows.Joined
        return flat.reshape(-1, length), np.ones((len(n), length), np.int32)
    real = np.arange(length) < n[:, None]
    out = np.full(real.shape, pad, np.int32)
    out[real] = flat
    return out, real.astype(np.int32)
