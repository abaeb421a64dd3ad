import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.choices import (
    Laid,
    Mixed,
    Ngrams,
    Tokens,
    Words,
    WordSpans,
    bits,
    budget,
    choose,
    choose_words,
    geometric,
    inverse,
)
from ptmjax.data.order import counter
from ptmjax.types import UserError


def rng(record=0, epoch=0):
    return counter(0, "t", record, epoch)


def test_budget():
    assert budget(np.array([3, 5, 10, 20, 128]), 0.15, 20).tolist() == [1, 1, 2, 3, 19]
    assert [int(budget(n, 0.15, None)) for n in (12, 30, 512)] == [2, 4, 77]  # 4.5 rounds to even, as BERT's round() does
    assert int(budget(512, 0.15, 20)) == 20


def test_roundings():
    n = np.array([20, 21, 30])  # 3, 3.15, 4.5
    assert budget(n, 0.15, None, "up").tolist() == [3, 4, 5]
    assert budget(n, 0.15, None, "chance", 0.0).tolist() == [3, 3, 4] and budget(n, 0.15, None, "chance", 0.9).tolist() == [3, 4, 5]
    assert budget(n, 0.15, 2, "up").tolist() == [2, 2, 2] and budget(np.array([1]), 0.15, None, "chance", 0.0).tolist() == [1]


def spoken(keys, free, first, k):
    """choose_words for one row, as BERT's code tells it."""
    groups, left, taken = {}, k, set()
    for place, w in enumerate(np.cumsum(first)):
        groups.setdefault(w, []).append(place)
    for w in sorted(groups, key=lambda w: keys[groups[w][0]]):
        found = [place for place in groups[w] if free[place]]
        if found and len(found) <= left:
            taken.update(found)
            left -= len(found)
    return [place in taken for place in range(len(first))]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 5), st.integers(1, 14), st.data())
def test_choose_words_is_the_walk_of_each_row(rows, length, data):
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    keys, _ = bits([generator] * rows, rows, length, 0)
    free = generator.random((rows, length)) < 0.8
    first = generator.random((rows, length)) < data.draw(st.sampled_from([0.2, 0.5, 1.0]))
    first[:, 0] = True
    k = generator.integers(1, length + 1, rows)
    found = choose_words(free, first, keys, k)
    assert found.tolist() == [spoken(*row) for row in zip(keys, free, first, k)]
    assert (found.sum(1) <= k).all()
    each = choose(free, keys, k)
    assert (each.sum(1) == np.minimum(k, free.sum(1))).all() and (choose_words(free, first | True, keys, k) == each).all()


@pytest.mark.parametrize("length", [1, 2, 14, 64, 65, 512])
def test_keys_differ_and_no_bit_is_used_twice(length):
    """Keys of a row: all different, even where all random bits are alike; those of the targets lie behind them."""
    keys, targets = bits([rng(0), rng(1)], 2, length, 3)
    words = rng(1).bit_generator.random_raw(-(-length // 2) + 3)
    assert keys.shape == (2, length) and (targets[1] == words[-3:]).all() and all(len(set(row)) == length for row in keys.tolist())
    mine, low = words.view(np.uint32)[:length], (1 << (length - 1).bit_length()) - 1
    assert (keys[1] >> low.bit_length() == mine >> low.bit_length()).all() and (keys[1] & low == np.arange(length)).all()


def test_laws_of_lengths():
    """The papers' numbers: ALBERT .545 .273 .182, SpanBERT's mean 3.797 and .224 of length 1, MacBERT's mean 2."""
    assert inverse(3) == pytest.approx((0.545, 0.273, 0.182), abs=5e-4)
    law = geometric(0.2, 10)
    assert law[0] == pytest.approx(0.224, abs=5e-4) and sum((n + 1) * p for n, p in enumerate(law)) == pytest.approx(3.797, abs=5e-4)
    assert sum((n + 1) * p for n, p in enumerate((0.4, 0.3, 0.2, 0.1))) == pytest.approx(2.0)


class Every:
    """A vocabulary of which id 9 is unk, 0 a symbol, and all else words, but for those from 100 on, which go on with their word."""

    unk = 9

    def starts(self, ids):
        return ids < 100


def laid(ids, **marks):
    ids = np.array(ids, np.int32)
    return Laid(ids, (ids > 0) & (ids != 9), Every(), {name: np.array(x, np.uint8) for name, x in marks.items()})


def drawn(choice, rows, k, seed=0):
    b, length = rows.ids.shape
    rngs = [rng(i, seed) for i in range(b)]
    keys, _ = bits(rngs, b, length, 0)
    return choice.units(rows, np.full(b, k), keys, rngs)


@pytest.mark.parametrize("shares", [inverse(3), (0.4, 0.3, 0.2, 0.1)])
def test_ngrams_have_the_law_of_their_lengths(shares):
    """One n-gram a row, its first word in the middle of a long text: the law of `shares`, in words, not pieces."""
    rows, n = laid([[0] + [1, 100] * 40 + [0]] * 6000), np.arange(1, 1 + len(shares))
    units = drawn(Ngrams(shares), rows, 8)  # 4 words of two pieces: the first n-gram always fits
    first = np.array([row[row > 0].min() if (row > 0).any() else 0 for row in units])
    assert (first > 0).all()
    keys, _ = bits([rng(i, 0) for i in range(len(units))], *rows.ids.shape, 0)
    begins = np.flatnonzero(rows.first()[0])[1:-1]
    begins = begins[begins < 75]
    counts = collections.Counter()
    for row, key in zip(units, keys):  # the word that was visited first
        place = begins[key[begins].argmin()]
        others = np.flatnonzero(rows.first()[0])[-5:-1]
        if key[others].min() > key[place] and row[place]:
            counts[(row == row[place]).sum() // 2] += 1
    total = sum(counts.values())
    assert total > 4000
    assert abs(np.array([counts[i] for i in n]) / total - shares).max() < 4 * (0.25 / total) ** 0.5


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([0, 1, 2, 9, 100, 101]), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 10**6),
       st.sampled_from([Words(), Ngrams((0.4, 0.3, 0.2, 0.1)), Ngrams((0.2, 0.8), words=False), WordSpans(), Tokens()]))
def test_units_of_every_choice(ids, k, seed, choice):
    """At most k places, all free; a word wholly or not at all (single pieces, and the end of the last span, apart); a unit does not
    reach over a symbol."""
    rows, k = laid([ids]), min(k, len(ids))
    unit = drawn(choice, rows, k, seed)[0]
    chosen = unit > 0
    assert chosen.sum() <= k and rows.free[0][chosen].all()
    for u in np.unique(unit[chosen]):
        at = np.flatnonzero(unit == u)
        assert not rows.alone[0][at[0] : at[-1] + 1].any()
    if isinstance(choice, Words) or isinstance(choice, Ngrams) and choice.words:
        word = np.cumsum(rows.first()[0])
        for w in np.unique(word[chosen]):
            assert chosen[(word == w) & rows.free[0]].all()
    if isinstance(choice, Tokens | WordSpans):
        assert chosen.sum() == min(k, rows.free[0].sum())
    assert (np.diff(unit[chosen]) >= 0).all()


def test_ngrams_shrink_to_what_is_left():
    """Trigrams alone where two places are left: from the first two words a bigram, and the last word, behind which the text ends, alone;
    what overlaps it is passed over."""
    units = drawn(Ngrams((0, 0, 1.0)), laid([[0, 1, 2, 3, 0]] * 50), 2)
    assert {tuple(np.flatnonzero(row)) for row in units} == {(1, 2), (2, 3), (3,)}


def test_spans_begin_with_words_and_long_words_are_likelier():
    """A piece is drawn, and its word begins the span: of a word of three pieces and one of one, three times as often."""
    first = drawn(WordSpans((1.0,)), laid([[0, 1, 100, 101, 2, 0]] * 4000), 1)
    begins = collections.Counter(np.argmax(first > 0, axis=1).tolist())
    assert set(begins) == {1, 4} and abs(begins[1] / 4000 - 0.75) < 4 * (0.1875 / 4000) ** 0.5


def test_spans_have_the_geometric_law_in_words():
    rows = laid([[0] + [1] * 200 + [0]] * 4000)
    units = drawn(WordSpans(), rows, 10)  # nearly always the first span alone: it may be as long
    keys, _ = bits([rng(i, 0) for i in range(4000)], *rows.ids.shape, 0)
    place = 1 + keys[:, 1:191].argmin(1)
    far = keys[np.arange(4000), place] < keys[:, 191:201].min(1)  # the first that was drawn lies before the text's last ten
    counts = collections.Counter()
    for row, at in zip(units[far], place[far]):
        behind = np.flatnonzero(row[at:] == 0)[0]
        before = np.flatnonzero(row[:at][::-1] == 0)[0]
        if before == 0 and row[at] == row[at + behind - 1]:
            counts[min(10, behind)] += 1
    total = sum(counts.values())
    law = np.array(geometric(0.2, 10))
    assert total > 3000 and abs(np.array([counts[n] for n in range(1, 11)]) / total - law).max() < 0.03  # a neighbour lengthens some


def test_a_column_says_where_words_begin():
    rows = laid([[0, 1, 2, 3, 4, 0]] * 300, words=[[0, 1, 0, 1, 0, 0]] * 300, phrases=[[0, 1, 0, 0, 0, 0]] * 300)
    assert {tuple(np.flatnonzero(row)) for row in drawn(Words(), rows, 2)} == {(1, 2), (3, 4)}
    assert {tuple(np.flatnonzero(row)) for row in drawn(Words("phrases"), rows, 4)} == {(1, 2, 3, 4)}
    assert {tuple(np.flatnonzero(row)) for row in drawn(Words(), laid([[0, 1, 2, 0]] * 50), 1)} == {(1,), (2,)}
    with pytest.raises(UserError, match="no column 'entities'.*use a cut that marks it"):
        drawn(Words("entities"), rows, 2)


def test_mixed_levels_come_at_their_rates():
    """ERNIE's levels: each row has one; single pieces, words, phrases."""
    rows = laid([[0, 1, 2, 3, 4, 0]] * 3000, words=[[0, 1, 0, 1, 0, 0]] * 3000, phrases=[[0, 1, 0, 0, 0, 0]] * 3000)
    choice = Mixed((Tokens(), Words(), Words("phrases")), (0.5, 0.3, 0.2))
    assert choice.columns == ("words", "phrases") and choice.rounding == "even"
    units = drawn(choice, rows, 4)
    found = collections.Counter(len(np.unique(row[row > 0])) for row in units)
    assert abs(np.array([found[4], found[2], found[1]]) / 3000 - (0.5, 0.3, 0.2)).max() < 4 * (0.25 / 3000) ** 0.5
    alone = Mixed((Tokens(), Words()), (1.0, 0.0))
    assert {len(set(row[row > 0])) for row in drawn(alone, rows, 4)} == {4}


@pytest.mark.parametrize("make, match", [
    (lambda: Ngrams((0.5, 0.4)), "sum to 1"), (lambda: Ngrams(()), "sum to 1"), (lambda: WordSpans((1.5, -0.5)), "sum to 1"),
    (lambda: geometric(1.0, 3), "in .0, 1."), (lambda: inverse(0), "most is 0"), (lambda: Tokens("down"), "rounding is 'down'"),
    (lambda: Mixed((Tokens(),), (0.5, 0.5)), "1 choices have 2 rates"), (lambda: Mixed((Tokens(), WordSpans()), (0.5, 0.5)), "same rounding"),
])
def test_settings_that_cannot_be(make, match):
    with pytest.raises(UserError, match=match):
        make()
