"""Greedy spans from a decoder that is a table or a hash of what it has read."""
import math
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ptmjax.decode.spans import Span, greedy_spans

EOS, START, SENTINELS = 1, 0, (19, 18, 17, 16)
ENDS = frozenset({EOS, *SENTINELS})


def says(*rows):
    """A decoder that says the ids of its row's list in turn, each with log p -1, -2, -4, ... by its place in the list; EOS after it."""
    asked = []

    def choose(tokens, t):
        asked.append(tokens[:, : t + 1].tolist())
        return np.array([(*row, *[EOS] * 99)[t - 1] for row in rows]), np.full(len(rows), -(2.0 ** (t - 1)))

    return choose, asked


def fill(choose, blanks, limit):
    return greedy_spans(choose, blanks, SENTINELS, ENDS, START, limit)


def test_ids_until_an_end_whose_probability_counts():
    choose, asked = says([5, 6, EOS])
    assert fill(choose, [1], 9) == [[Span([5, 6], -1 - 2 - 4)]]
    assert asked == [[[START, 19]], [[START, 19, 5]], [[START, 19, 5, 6]]]


def test_an_end_at_once_is_an_empty_span():
    choose, asked = says([EOS, 5, 18])
    assert fill(choose, [2], 9) == [[Span([], -1.0), Span([5], -2 - 4)]]
    assert asked[1] == [[START, 19, 18]]  # the second blank follows at once


def test_at_the_limit_the_end_does_not_count():
    choose, asked = says([5, 6, 7, 8, 9])
    assert fill(choose, [2], 2) == [[Span([5, 6], -1 - 2), Span([8, 9], -8 - 16)]]
    assert len(asked) == 5


def test_a_finished_row_stands_still():
    """Its probability is that of its own text, whatever texts are beside it."""
    choose, asked = says([5], [5, 6, 7, 8])
    assert fill(choose, [1, 1], 9) == [[Span([5], -1 - 2)], [Span([5, 6, 7, 8], -31)]]
    assert len(asked) == 5 and asked[-1][0] == [START, 19, 5, START, START, START]


def hashed(names, seed):
    """A decoder of rows `names`: ids and log p are a hash of the row's name and of what it has read."""
    def one(name, read):
        rng = np.random.default_rng(zlib.crc32(repr((seed, name, read)).encode()))
        return int(rng.choice([EOS, 18, 2, 3, 4, 5])), float(-rng.exponential())

    return lambda tokens, t: tuple(map(np.array, zip(*(one(n, row[: t + 1].tolist()) for n, row in zip(names, tokens)))))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 999))
def test_a_row_alone_is_the_row_beside_others(blanks, limit, seed):
    together = fill(hashed(range(len(blanks)), seed), blanks, limit)
    assert together == [fill(hashed([row], seed), [n], limit)[0] for row, n in enumerate(blanks)]
    for spans, n in zip(together, blanks):
        assert len(spans) == n and all(len(s.ids) <= limit and math.isfinite(s.log_p) and not ENDS & {*s.ids} for s in spans)
