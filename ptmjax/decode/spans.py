"""Filling the blanks of a span-corrupted text (T5), greedily.

B rows, T places of the decoder.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Choose = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]  # (decoder_tokens [B, T], t) -> what follows place t: ids, log p [B]


@dataclass
class Span:
    """What stands in one blank. log_p is that of the ids and, where it is shorter than the limit, of its end."""

    ids: list[int] = field(default_factory=list)
    log_p: float = 0.0


def greedy_spans(choose: Choose, blanks: Sequence[int], sentinels: Sequence[int], ends: frozenset[int], start: int,
                 limit: int) -> list[list[Span]]:
    """For each row, the spans of its `blanks` blanks (at least 1), whatever the other rows are.

    The decoder is given each blank's sentinel in turn and then writes what it likes best, until one of `ends` (sentinels, EOS) or
    `limit` ids: so every blank gets an answer, which a model left to itself may forget.
    """
    tokens = np.full((len(blanks), max(blanks) * (limit + 1) + 1), start, np.int32)
    tokens[:, 1], found, open_rows = sentinels[0], [[Span()] for _ in blanks], set(range(len(blanks)))
    for t in range(1, tokens.shape[1] - 1):
        best, log_p = (x.tolist() for x in choose(tokens, t))
        for row in sorted(open_rows):
            spans = found[row]
            if not (full := len(spans[-1].ids) == limit):
                spans[-1].log_p += log_p[row]
            if not full and best[row] not in ends:
                spans[-1].ids.append(best[row])
                tokens[row, t + 1] = best[row]
            elif len(spans) < blanks[row]:
                tokens[row, t + 1] = sentinels[len(spans)]
                spans.append(Span())
            else:
                open_rows.remove(row)
        if not open_rows:
            break
    return found
