"""Pairs of text, cut when they are read: next sentence (BERT, Devlin et al. 2019, section 3.1 and its create_pretraining_data.py), sentence
order (ALBERT, Lan et al. 2020, section 3.1), both (StructBERT, Wang et al. 2020, arXiv 1908.04577), or neither.

B rows, L length. "Sentence" is what the text was cut into (windows.Sentences); a part of a pair is a run of them.
"""
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.corruption import Over
from ptmjax.data.masking import Masking
from ptmjax.types import UserError

TRIES = 10  # records drawn in search of another document, as in BERT's own code


@dataclasses.dataclass(frozen=True)
class Pairs(Over):
    """Corruption: CLS A SEP B SEP with types 0 and 1; masked; and a label, which tells what B is.

    In the text B follows A; at rate `swapped` the two change places, at rate `other` B is from another document. Labels number those
    of the three that occur, in this order: BERT's next sentence is other=.5 (label 1), ALBERT's and MacBERT's sentence order other=0,
    swapped=.5 (label 1), StructBERT's three ways are other=1/3, swapped=1/3 (0 next, 1 previous, 2 other), and other=0 gives two
    segments with nothing to tell.

    A target of `length` - 3 tokens, or at rate `short` one of 2 .. length - 3, is filled with consecutive whole sentences of the
    record, the last of which may go beyond it. A random number of them, not all, is A, and B the others; but at rate `other`, and
    where it is not 0 always where they are one sentence (so that label has a larger share, as in BERT), B is a run of sentences of a
    random record with another document id, which fills the target behind A. What is longer than length - 3 in all loses tokens
    of its longer part, each from the front or the back with equal chance.

    Where no other document is drawn (ever, in a corpus of one) B follows A, label 0; where the record is one sentence then, or
    none, the row is CLS A SEP with row_weights 0: the sentence loss does not count it, that of the masked tokens does. (ALBERT's code
    takes a random B for such a text and calls it swapped; its paper does not.)

    alone: A and B are one sentence each, whatever their lengths (RoBERTa's SENTENCE-PAIR, Liu et al. 2019, section 4.2, whose rows are
        mostly padding); its SEGMENT-PAIR is BERT's. `short` has no effect then.

    A run begins at a random one of the sentences that have enough behind them, or where none has, at the record's first. So cut
    the text to about twice length - 3 (windows.Sentences): then both kinds of pairs fill a row, while of records that hold no
    more than a row the random pairs alone would, and a model would learn to count. Departures: BERT puts the sentences that a
    random B displaces back into the stream, here they are seen in other epochs; it draws the other document evenly and any
    sentence of it, here by record, so that long documents are likelier, and with enough behind.
    """

    masking: Masking
    short: float = 0.1
    other: float = 0.5
    swapped: float = 0.0
    alone: bool = False

    def __post_init__(self):
        if self.masking.length < 5:
            raise UserError(f"pairs need rows of at least 5 tokens (CLS, one, SEP, one, SEP), not {self.masking.length}")
        if not (0 <= self.short <= 1 and 0 <= self.other and 0 <= self.swapped and self.other + self.swapped <= 1):
            raise UserError(f"pairs: short {self.short}, other {self.other} and swapped {self.swapped} are shares of rows: give numbers in "
                            "[0, 1], the last two at most 1 together")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the labels mean, from 0."""
        return ("next", *(name for name in ("swapped", "other") if getattr(self, name)))

    @property
    def features(self) -> tuple[str, ...]:
        return (*(name for name in self.masking.features if name != "types"), "types", "label", "row_weights")

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L] and [B]: each row depends on its own example and generator, and on `lookup`."""
        rngs = list(rngs)
        made = [self.pair(example, rng, lookup) for example, rng in zip(examples, rngs, strict=True)]
        out = self.masking.masked([(a, b) if len(b) else (a,) for a, b, _ in made], rngs, lookup)
        first = np.array([len(a) + 2 for a, _, _ in made])
        types = (np.arange(self.masking.length) >= first[:, None]) * out["segments"]
        scored = np.array([len(a) > 0 < len(b) for a, b, _ in made], np.float32)
        return out | {"types": types, "label": np.array([label for _, _, label in made], np.int32), "row_weights": scored}

    def pair(self, example: dict, rng: np.random.Generator, lookup: Sequence[dict]) -> tuple[np.ndarray, np.ndarray, int]:
        """(A, B, label); B may be empty."""
        if "starts" not in example:
            raise UserError("pairs need the sentences of their records: cut the text with windows.Sentences")
        tokens, bounds = self.masking.pieces(example), _bounds(example)
        most, size = self.masking.length - 3, len(bounds) - 1
        target = int(rng.integers(2, most + 1)) if rng.random() < self.short else most
        begin, end = self._part(bounds, target, rng, 2)
        middle = begin + (int(rng.integers(1, end - begin)) if end - begin > 1 else min(1, size))
        a, b, kind = tokens[bounds[begin] : bounds[middle]], None, "next"
        if len(a):
            u = rng.random() if end - begin > 1 or not self.other else 0.0
            kind = "other" if u < self.other else "swapped" if u < self.other + self.swapped else "next"
        if kind == "other":
            b = self._elsewhere(example["document"][0], target - len(a), rng, lookup)
        if b is None:
            if middle == size and begin > 0:  # nothing follows a last sentence: let it follow the one before
                begin, middle = begin - 1, begin
            a, b = tokens[bounds[begin] : bounds[middle]], tokens[bounds[middle] : bounds[min(size, max(end, middle + 1))]]
            a, b, kind = (b, a, kind) if kind == "swapped" and len(b) else (a, b, "next")
        return *shorten(a, b, most, rng), self.kinds.index(kind)

    def _elsewhere(self, document: int, want: int, rng: np.random.Generator, lookup: Sequence[dict]) -> np.ndarray | None:
        """A run of `want` tokens or more, if its record has so many, of another document; None where none is found."""
        for _ in range(TRIES if len(lookup) else 0):
            record = lookup[int(rng.integers(len(lookup)))]
            if record["document"][0] != document and len(record["starts"]):
                bounds = _bounds(record)
                begin, end = self._part(bounds, want, rng, 1)
                return self.masking.pieces(record)[bounds[begin] : bounds[end]]
        return None

    def _part(self, bounds: np.ndarray, target: int, rng: np.random.Generator, most: int) -> tuple[int, int]:
        """Sentences begin .. end - 1: a run that fills `target` tokens, or (alone) `most` of them where there are so many."""
        if not self.alone:
            return _run(bounds, target, rng)
        count = min(most, len(bounds) - 1)
        begin = int(rng.integers(len(bounds) - count))
        return begin, begin + count


def _bounds(record: dict) -> np.ndarray:
    """int64 [sentences + 1]: where sentences begin, and the end."""
    return np.append(record["starts"], len(record["tokens"])).astype(np.int64)


def _run(bounds: np.ndarray, target: int, rng: np.random.Generator) -> tuple[int, int]:
    """Sentences begin .. end - 1 that fill `target` tokens, the last maybe more; all from the first where the record is shorter."""
    enough = int(np.searchsorted(bounds[:-1], bounds[-1] - target, "right"))  # so many have `target` tokens from them on
    begin = int(rng.integers(enough)) if enough > 1 else 0
    end = int(np.searchsorted(bounds, bounds[begin] + target))
    return begin, min(len(bounds) - 1, max(end, begin + 1))


def shorten(a: np.ndarray, b: np.ndarray, most: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Both cut to `most` tokens together: one token after the other from the longer (of equals from b), front or back at random."""
    excess = max(0, len(a) + len(b) - most)
    even = min(excess, abs(len(a) - len(b)))  # taken from the longer before they are equal
    gone = [(excess - even) // 2, excess - even - (excess - even) // 2]
    gone[0 if len(a) > len(b) else 1] += even
    front = [int(rng.binomial(n, 0.5)) if n else 0 for n in gone]
    return tuple(x[f : len(x) - (n - f)] for x, f, n in zip((a, b), front, gone))
