"""Dialogues: ERNIE's dialogue language model (Sun et al. 2019, arXiv 1904.09223, section 3.3).

B rows, L length, T turns of a record.
"""
import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ptmjax.data.corruption import Over
from ptmjax.data.masking import Masking
from ptmjax.data.pairs import TRIES
from ptmjax.data.vocabulary import Vocabulary
from ptmjax.data.windows import number_of
from ptmjax.types import UserError, at_least

_TURN = re.compile(r"\s*(?:(?P<query>[Qq问])|[Rr答])\s*[:：]\s*(?P<said>.*)")
QUERY, RESPONSE = 0, 1


def turns_of(document: str) -> list[tuple[int, str]]:
    """(role, what is said) of each turn: a line that begins with Q: or R: (or 问： or 答：), a line of two columns, query<TAB>response, or
    one without either, whose speaker is the other than that of the turn before (the first is Q). Empty ones are left out."""
    found, last = [], RESPONSE
    for line in document.split("\n"):
        query, tab, response = line.partition("\t")
        if marked := _TURN.fullmatch(line):
            said = [(QUERY if marked["query"] else RESPONSE, marked["said"])]
        elif tab:
            said = [(QUERY, query), (RESPONSE, response)]
        else:
            said = [(1 - last, line)]
        found += [(role, turn.strip()) for role, turn in said if turn.strip()]
        last = found[-1][0] if found else RESPONSE
    return found


def fit(parts: Sequence[np.ndarray], most: int) -> list[np.ndarray]:
    """The parts, the longest of which lose tokens at their ends until there are at most `most` in all."""
    sizes = sorted(map(len, parts))
    left, cap = most, sizes[-1]
    for i, size in enumerate(sizes):
        if size * (len(sizes) - i) > left:
            cap = left // (len(sizes) - i)
            break
        left -= size
    return [part[:cap] for part in parts]


@dataclasses.dataclass(frozen=True)
class Turns:
    """Up to `turns` turns of a dialogue (a document; turns_of) a record, of together at most `length` tokens (fit). A record begins with
    the last turn of the one before, so that every turn is seen with the one that it answers."""

    length: int
    turns: int = 3
    schema = {"tokens": "int32", "starts": "int32", "roles": "int32", "document": "int32"}

    def __post_init__(self):
        at_least(2, turns=self.turns)
        at_least(self.turns, length=self.length)

    def __call__(self, documents: Iterable[str], vocabulary: Vocabulary, counts: collections.Counter | None = None) -> Iterator[dict]:
        """Yields tokens int32 [<= length], starts (of turns) and roles (0 Q, 1 R) int32 [T], document int32 [1]; `counts` gets documents,
        tokens, dropped, dropped_tokens and lone_turns: dialogues of one turn, which can be told from no other."""
        counts = collections.Counter() if counts is None else counts
        for text in documents:
            said = [(role, tokens) for role, turn in turns_of(text) if len(tokens := vocabulary.encode(turn))]
            counts.update(documents=1, dropped=int(not said), lone_turns=int(len(said) == 1))
            for begin in range(0, max(1, len(said) - 1) if said else 0, self.turns - 1):
                roles, turns = zip(*said[begin : begin + self.turns])
                parts = fit(turns, self.length)
                counts.update(tokens=sum(map(len, parts)), dropped_tokens=sum(map(len, turns)) - sum(map(len, parts)))
                yield {"tokens": np.concatenate(parts), "starts": np.cumsum([0, *map(len, parts[:-1])], dtype=np.int32),
                       "roles": np.array(roles, np.int32), "document": number_of(text)}


@dataclasses.dataclass(frozen=True)
class Dialogue(Over):
    """Corruption: CLS turn SEP turn SEP ..., masked in turns of both roles; and a label, 1 where one turn is fake.

    fake: the share of rows in which one turn, any, is that of a random record of another dialogue (its own role stays); the paper does
        not tell it. Where none is drawn, ever in a corpus of one dialogue, the row is real; one of a single turn has row_weights 0.
    role: the token type of Q, that of R is the next; CLS is of the first turn, each SEP of the turn before it. In the paper the dialogue
        embedding takes the place of the segment embedding; 2 (so a table of 4 types) keeps both apart in a network that pairs train
        too, 0 makes them share two.
    """

    masking: Masking
    fake: float = 0.5
    role: int = 2

    def __post_init__(self):
        at_least(0, role=self.role)
        if not 0 <= self.fake <= 1:
            raise UserError(f"dialogues: fake {self.fake} is a share of rows: give a number in [0, 1]")

    kinds = ("real", "fake")  # what the labels mean, from 0

    @property
    def features(self) -> tuple[str, ...]:
        return (*(name for name in self.masking.features if name != "types"), "types", "label", "row_weights")

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L] and [B]: each row depends on its own example and generator, and on `lookup`."""
        rngs = list(rngs)
        made = [self._row(example, rng, lookup) for example, rng in zip(examples, rngs, strict=True)]
        out = self.masking.masked([turns for turns, _ in made], rngs, lookup)
        types = np.zeros_like(out["tokens"])
        for row, example, (turns, _) in zip(types, examples, made):
            sizes = [len(turn) + 1 + (not i) for i, turn in enumerate(turns)]
            row[: sum(sizes)] = np.repeat(example["roles"] + self.role, sizes)
        several = np.array([len(turns) > 1 for turns, _ in made], np.float32)
        return out | {"types": types, "label": np.array([label for _, label in made], np.int32), "row_weights": several}

    def _row(self, example: dict, rng: np.random.Generator, lookup: Sequence[dict]) -> tuple[list[np.ndarray], int]:
        """(the turns, whether one is fake)."""
        turns, label = self._turns(example), 0
        if len(turns) > 1 and rng.random() < self.fake:
            at, other = int(rng.integers(len(turns))), self._elsewhere(example["document"][0], rng, lookup)
            if other is not None:
                turns[at], label = other, 1
        if (most := self.masking.length - 1 - len(turns)) < len(turns):
            raise UserError(f"rows of {self.masking.length} tokens are too short for dialogues of {len(turns)} turns: give longer rows")
        return fit(turns, most), label

    def _turns(self, record: dict) -> list[np.ndarray]:
        if "roles" not in record:
            raise UserError("dialogues need the turns of their records: cut the text with dialogue.Turns")
        return np.split(self.masking.pieces(record), record["starts"][1:])

    def _elsewhere(self, document: int, rng: np.random.Generator, lookup: Sequence[dict]) -> np.ndarray | None:
        """A turn of another dialogue; None where none is found."""
        for _ in range(TRIES if len(lookup) else 0):
            record = lookup[int(rng.integers(len(lookup)))]
            if record["document"][0] != document:
                turns = self._turns(record)
                return turns[int(rng.integers(len(turns)))]
        return None
