"""Next-sentence pairs (BERT, Devlin et al. 2019, section 3.1 and its create_pretraining_data.py), cut when they are read.

B rows, L length. "Sentence" is what the text was cut into (windows.Sentences); a part of a pair is a run of them.
"""
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.masking import Masking
from ptmjax.types import UserError

TRIES = 10  # records drawn in search of another document, as in BERT's own code


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Corruption: CLS A SEP B SEP with types 0 and 1; label 1 where B is from another document, 0 where it follows A; masked.

    A target of `length` - 3 tokens, or at rate `short` one of 2 .. length - 3, is filled with consecutive whole sentences of the
    record, the last of which may go beyond it. A random number of them, not all, is A, and B the others; but at rate `other`, and
    always where they are one sentence (so label 1 has a larger share than `other`, as in BERT), B is a run from a random
    sentence of a random record with another document id, going on in its document until the target is filled. What is longer
    than length - 3 in all loses tokens of its longer part, each from the front or the back with equal chance.

    Where no other document is drawn (ever, in a corpus of one) B follows A, label 0; where nothing follows either, or the
    record is empty, the row is CLS A SEP with row_weights 0: the sentence loss does not count it, the masked tokens do.

    A record may hold more than the target: then the sentences begin at a random one of those with enough behind it. Cut to
    about twice length - 3, so that both kinds of pairs fill the target: a record that holds less than that shows by its
    length that B follows. Departures: BERT puts the sentences that a random B displaces back into the stream, here they are
    seen in other epochs; it draws the other document by document, here by record, so that long ones are likelier.
    """

    masking: Masking
    short: float = 0.1
    other: float = 0.5

    def __post_init__(self):
        if self.masking.length < 5:
            raise UserError(f"pairs need rows of at least 5 tokens (CLS, one, SEP, one, SEP), not {self.masking.length}")
        if not (0 <= self.short <= 1 and 0 <= self.other <= 1):
            raise UserError(f"pairs: short {self.short} and other {self.other} are shares of rows: give numbers in [0, 1]")

    @property
    def features(self) -> tuple[str, ...]:
        return (*(name for name in self.masking.features if name != "types"), "types", "label", "row_weights")

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator, lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        return {key: x[0] for key, x in self.rows([example], [rng], lookup).items()}

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L] and [B]: each row depends on its own example and generator, and on `lookup`."""
        rngs = list(rngs)
        made = [self._pair(example, rng, lookup) for example, rng in zip(examples, rngs, strict=True)]
        out = self.masking.masked([(a, b) if len(b) else (a,) for a, b, _ in made], rngs)
        first = np.array([len(a) + 2 for a, _, _ in made])
        types = (np.arange(self.masking.length) >= first[:, None]) * out["segments"]
        scored = np.array([len(a) > 0 < len(b) for a, b, _ in made], np.float32)
        return out | {"types": types, "label": np.array([label for _, _, label in made], np.int32), "row_weights": scored}

    def _pair(self, example: dict, rng: np.random.Generator, lookup: Sequence[dict]) -> tuple[np.ndarray, np.ndarray, int]:
        """(A, B, label); B may be empty."""
        if "starts" not in example:
            raise UserError("pairs need the sentences of their records: cut the text with windows.Sentences")
        tokens, bounds = example["tokens"], _bounds(example)
        most, size = self.masking.length - 3, len(bounds) - 1
        target = int(rng.integers(2, most + 1)) if rng.random() < self.short else most
        begins = np.searchsorted(bounds[:-1], len(tokens) - target, "right")  # so many have `target` tokens behind them
        begin = int(rng.integers(begins)) if begins > 1 else 0
        end = _end(bounds, begin, target)
        middle = begin + int(rng.integers(1, end - begin)) if end - begin > 1 else min(begin + 1, size)
        a, b = tokens[bounds[begin] : bounds[middle]], None
        if len(a) and (end - begin == 1 or rng.random() < self.other):
            b = _elsewhere(example["document"][0], target - len(a), rng, lookup)
        label = int(b is not None)
        if b is None:
            b = tokens[bounds[middle] : bounds[_end(bounds, begin, target, middle + 1)]]
        return *shorten(a, b, most, rng), label

    def readout(self) -> "Pairs":
        """The same pairs with all chosen pieces shown as MASK."""
        return dataclasses.replace(self, masking=self.masking.readout())

    @property
    def view(self) -> str:
        return self.masking.view

    def bound(self, counts: np.ndarray) -> dict[str, float]:
        """Of the masked tokens (masking.no_context_bound)."""
        return self.masking.bound(counts)


def _bounds(record: dict) -> np.ndarray:
    """int64 [sentences + 1]: where sentences begin, and the end."""
    return np.append(record["starts"], len(record["tokens"])).astype(np.int64)


def _end(bounds: np.ndarray, begin: int, target: int, least: int | None = None) -> int:
    """Before which sentence a run from `begin` ends: with the one that fills `target`, or the record's last; not before `least`."""
    least = begin + 1 if least is None else least
    return min(len(bounds) - 1, max(least, int(np.searchsorted(bounds, bounds[min(begin, len(bounds) - 1)] + target))))


def _elsewhere(document: int, want: int, rng: np.random.Generator, lookup: Sequence[dict]) -> np.ndarray | None:
    """Sentences of at least `want` tokens, if its document goes on so far, from a random place of another document."""
    for _ in range(TRIES if len(lookup) else 0):
        at = int(rng.integers(len(lookup)))
        record = lookup[at]
        if (strange := record["document"][0]) != document and len(record["starts"]):
            break
    else:
        return None
    begin, held = int(rng.integers(len(record["starts"]))), []
    while True:
        bounds = _bounds(record)
        held.append(record["tokens"][bounds[begin] : bounds[_end(bounds, begin, want)]])
        at, want, begin = at + 1, want - len(held[-1]), 0
        if want <= 0 or at == len(lookup) or (record := lookup[at])["document"][0] != strange:
            return np.concatenate(held)


def shorten(a: np.ndarray, b: np.ndarray, most: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Both cut to `most` tokens together: one token after the other from the longer (of equals from b), front or back at random."""
    excess = max(0, len(a) + len(b) - most)
    even = min(excess, abs(len(a) - len(b)))  # taken from the longer before they are equal
    gone = [(excess - even) // 2, excess - even - (excess - even) // 2]
    gone[0 if len(a) > len(b) else 1] += even
    front = [int(rng.binomial(n, 0.5)) if n else 0 for n in gone]
    return tuple(x[f : len(x) - (n - f)] for x, f, n in zip((a, b), front, gone))
