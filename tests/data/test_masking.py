import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.choices import Ngrams, Tokens, Words, WordSpans, budget, geometric, inverse
from ptmjax.data.masking import Masking, edges, no_context_bound
from ptmjax.data.order import counter
from ptmjax.types import UserError

TEXT = "a b c d e f g h i j"


def example(vocabulary, text=TEXT):
    return {"tokens": vocabulary.encode(text)}


def rng(record=0, epoch=0):
    return counter(0, "t", record, epoch)


def many(masking, record, n):
    return masking.rows([record] * n, [rng(i) for i in range(n)], [])


def test_golden(abc):
    out = Masking(abc, 14, rate=0.4).rows([example(abc)] * 3, [rng(0), rng(1), rng(2)], [])
    assert {key: x.dtype.name for key, x in out.items()} == dict(tokens="int32", targets="int32", weights="float32", segments="int32")
    assert (out["targets"] == [16, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 15, 15]).all()
    assert (out["segments"] == [1] * 12 + [0, 0]).all()
    assert [row.nonzero()[0].tolist() for row in out["weights"]] == [[2, 5, 7, 9, 10], [4, 6, 7, 8, 10], [2, 3, 4, 5, 6]]
    assert out["tokens"].tolist() == [
        [16, 2, 14, 4, 5, 14, 7, 14, 9, 14, 14, 0, 15, 15],
        [16, 2, 3, 4, 14, 6, 14, 14, 14, 10, 14, 0, 15, 15],
        [16, 2, 14, 14, 14, 4, 7, 8, 9, 10, 11, 0, 15, 15],  # a random piece in place 5; place 6 is scored as it is
    ]


def test_two_of_ten_words_and_never_a_special(abc):
    """Row of pitfall 3: 10 words in 512 places give exactly 2, though PAD, CLS and SEP have unusual ids."""
    out = many(Masking(abc, 512), example(abc), 2000)
    assert (out["weights"].sum(1) == 2).all()
    assert (out["weights"].sum(0)[1:11] > 300).all()  # 400 expected: every word has its turn
    assert out["weights"][:, 0].sum() == out["weights"][:, 11:].sum() == 0


def test_unknown_words_are_never_chosen(abc):
    out = many(Masking(abc, 12, rate=1.0), example(abc, "a zebra b zebra"), 200)
    assert out["targets"][0].tolist() == [16, 2, 1, 3, 1, 0] + [15] * 6
    assert (out["weights"] == np.array([0, 1, 0, 1] + [0] * 8)).all()


def test_shares_of_mask_random_and_kept(english):
    """Over 1e5 chosen pieces: .8, .1, .1 within .01 (a random piece equals the old one with chance 1/4091)."""
    tokens = {"tokens": np.arange(5, 131, dtype=np.int32)}
    out = many(Masking(english, 128), tokens, 5400)
    chosen = out["weights"] > 0
    shown, target = out["tokens"][chosen], out["targets"][chosen]
    assert len(shown) == 5400 * 19 > 1e5
    masked, kept = shown == english.mask, shown == target
    assert abs(masked.mean() - 0.8) < 0.01 and abs(kept.mean() - 0.1) < 0.01 and abs((~masked & ~kept).mean() - 0.1) < 0.01
    drawn = shown[~masked & ~kept]
    assert drawn.min() == 5 and drawn.max() >= 4090 and drawn.max() < english.size  # ordinary ids, to both ends
    halves = np.bincount(drawn // 512, minlength=8) / len(drawn)
    assert abs(halves[1:8] - 512 / 4091).max() < 0.01
    assert (out["tokens"][~chosen] == out["targets"][~chosen]).all()


def test_choice_is_uniform_over_places(english):
    out = many(Masking(english, 128), {"tokens": np.arange(5, 131, dtype=np.int32)}, 5000)
    share = out["weights"][:, 1:127].mean(0)
    assert abs(share - 19 / 126).max() < 5 * (0.15 * 0.85 / 5000) ** 0.5


@pytest.mark.parametrize("mask, random, shown", [(1, 0, "mask"), (0, 0, "same"), (0, 1, "any")])
def test_extremes(abc, mask, random, shown):
    out = many(Masking(abc, 12, rate=1.0, mask=mask, random=random), example(abc), 400)
    assert (out["weights"] == np.array([0] + [1] * 10 + [0])).all()
    tokens = out["tokens"][:, 1:11]
    if shown == "any":
        assert set(tokens.ravel().tolist()) == set(range(2, 14))
    else:
        assert (tokens == (abc.mask if shown == "mask" else out["targets"][:, 1:11])).all()


def test_one_ordinary_word_returns(words):
    only = words(["a"])
    out = Masking(only, 8, rate=1.0, mask=0, random=1)({"tokens": np.array([2, 2], np.int32)}, rng(), [])
    assert out["tokens"].tolist() == out["targets"].tolist() == [5, 2, 2, 0, 4, 4, 4, 4]


def test_nothing_to_choose(abc):
    for text in ("", "zebra zebra"):
        out = Masking(abc, 8)(example(abc, text), rng(), [])
        assert out["weights"].sum() == 0 and (out["tokens"] == out["targets"]).all()


def test_long_rows_are_cut(abc):
    out = Masking(abc, 5)(example(abc), rng(), [])
    assert out["targets"].tolist() == [16, 2, 3, 4, 0] and out["segments"].all()
    assert Masking(abc, 5)(example(abc, "a b c"), rng(), [])["targets"].tolist() == [16, 2, 3, 4, 0]  # what fits exactly keeps its SEP too


def test_masks_are_fresh_by_epoch_and_record_and_else_the_same(english):
    masking, record = Masking(english, 64), {"tokens": np.arange(5, 67, dtype=np.int32)}
    of = lambda *place: masking(record, rng(*place), [])["weights"].tolist()
    assert of(3, 0) == of(3, 0)
    assert of(3, 0) != of(3, 1) and of(3, 0) != of(4, 0)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(3, 16), st.sampled_from([0.15, 0.5, 1.0]), st.booleans())
def test_rows_are_what_each_row_is_alone(words, sizes, length, rate, whole):
    masking = Masking(words(list("abcdefgh")), length, rate=rate, choice=Words() if whole else Tokens())  # every word is one piece
    records = [{"tokens": (np.arange(n, dtype=np.int32) % 9) + 1} for n in sizes]  # id 1 is unk
    together = masking.rows(records, [rng(i) for i in range(len(sizes))], [])
    for i, record in enumerate(records):
        for key, x in masking(record, rng(i), []).items():
            np.testing.assert_array_equal(x, together[key][i])
    free = (together["targets"] >= 2) & (together["targets"] < 10)
    n = together["segments"].sum(1)
    assert together["weights"].sum(1).tolist() == np.minimum(free.sum(1), budget(n, rate, None)).tolist()
    assert not together["weights"][~free].any()


def test_does_not_write_into_the_record(abc):
    record = example(abc)
    record["tokens"].flags.writeable = False
    Masking(abc, 14, rate=1.0)(record, rng(), [])
    assert record["tokens"].tolist() == list(range(2, 12))


def test_readout_shows_the_same_pieces_as_mask(english):
    masking, record = Masking(english, 64, cap=5), {"tokens": np.arange(5, 67, dtype=np.int32)}
    trained, read = (many(m, record, 100) for m in (masking, masking.readout()))
    assert (trained["weights"] == read["weights"]).all()
    assert (read["tokens"][read["weights"] > 0] == english.mask).all()
    assert (trained["tokens"][trained["weights"] > 0] != english.mask).any()


def test_features_are_the_keys(abc):
    for types in (False, True):
        masking = Masking(abc, 14, types=types)
        assert masking.features == tuple(masking(example(abc), rng(), []))
    assert not masking(example(abc), rng(), [])["types"].any()


def test_pickles_small(english):
    masking = Masking(english, 64)
    masking({"tokens": np.array([5], np.int32)}, rng(), [])
    again = pickle.loads(pickle.dumps(masking))
    assert len(pickle.dumps(masking)) < 1000 and again.length == 64
    assert again({"tokens": np.array([5], np.int32)}, rng(), [])["targets"][:3].tolist() == [2, 5, 3]


def test_a_word_or_unit_is_shown_in_one_way(english):
    """SpanBERT's spans and RoBERTa's words: masked, replaced or kept as a whole, at the same shares; by piece they are not."""
    tokens, sure = {"tokens": np.arange(5, 131, dtype=np.int32)}, WordSpans((0, 0, 0, 1.0))
    mixed = {}
    for each in ("piece", "unit"):
        out = many(Masking(english, 128, choice=sure, each=each, bounds=True), tokens, 800)
        chosen, masked = out["weights"] > 0, out["tokens"] == english.mask
        spans = {}
        for row, place in zip(*np.nonzero(chosen)):
            spans.setdefault((row, out["left"][row, place]), []).append(masked[row, place])
        mixed[each] = np.mean([0 < np.mean(span) < 1 for span in spans.values()])
        shares = [np.mean([masked[chosen].mean(), (out["tokens"] == out["targets"])[chosen].mean()][i]) for i in range(2)]
        assert abs(np.subtract(shares, (0.8, 0.1))).max() < 5 * (0.16 / len(spans)) ** 0.5
    assert mixed["unit"] == 0 and mixed["piece"] > 0.4


def test_words_are_shown_in_one_way_though_single_pieces_are_chosen(pieces):
    out = many(Masking(pieces, 12, rate=1.0, mask=0.5, random=0.0, each="word"), example(pieces, "un ##aff ##able dog cat ##s hen"), 400)
    masked = out["tokens"] == pieces.mask
    assert (masked[:, 1:4].all(1) | ~masked[:, 1:4].any(1)).all() and abs(masked[:, 1].mean() - 0.5) < 0.125
    assert (masked[:, 5] == masked[:, 6]).all() and 0.3 < (masked[:, 4] == masked[:, 5]).mean() < 0.7


def test_random_ids_of_the_corpus_have_its_law(english):
    """SpanBERT's replacements: ids that occur, about as often as they do; symbols in records are passed over; none: any id."""
    records = [{"tokens": np.array(x, np.int32)} for x in ([7, 7, 7, 8], [7, 7, 7, 8, english.unk, english.sep], [english.sep])]
    masking = Masking(english, 66, rate=1.0, mask=0.0, random=1.0, corpus=True)
    drawn = masking.rows([{"tokens": np.full(64, 99, np.int32)}] * 200, [rng(i) for i in range(200)], records)["tokens"][:, 1:65].ravel()
    shares = [np.mean(drawn == 7), np.mean(drawn == 8), np.mean((drawn != 7) & (drawn != 8))]
    assert abs(np.subtract(shares, (0.5, 1 / 6, 1 / 3))).max() < 5 * (0.25 / len(drawn)) ** 0.5
    assert "bound" not in masking.bound(np.ones(english.size)) and "bound" in masking.readout().bound(np.ones(english.size))


def test_edges_are_the_places_around_a_unit():
    found = edges(np.array([[0, 1, 1, 0, 2, 3, 3, 0]], np.int32))
    assert found["left"].tolist() == [[0, 0, 0, 0, 3, 4, 4, 0]] and found["right"].tolist() == [[0, 3, 3, 0, 5, 7, 7, 0]]


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.integers(1, 40), st.sampled_from([0.15, 0.5, 1.0]), st.integers(0, 2**32))
def test_boundaries_of_spans_are_never_predicted_nor_padding(english, n, rate, seed):
    """Pitfall 20: also of spans beside CLS and SEP."""
    masking = Masking(english, 44, rate=rate, choice=WordSpans(), bounds=True)
    tokens = np.random.default_rng(seed).integers(5, 4000, n).astype(np.int32)
    out = masking({"tokens": tokens}, np.random.Generator(np.random.Philox(seed)), [])
    scored = np.flatnonzero(out["weights"])
    assert len(scored) == min(n, budget(n + 2, rate, None, "up"))
    for place in scored:
        left, right = out["left"][place], out["right"][place]
        assert left < place < right and out["weights"][left] == out["weights"][right] == 0
        assert out["weights"][left + 1 : right].all() and out["segments"][right] == 1
    assert not out["left"][out["weights"] == 0].any() and not out["right"][out["weights"] == 0].any()


CHOICES = [Tokens(), Tokens("chance"), Words(), Ngrams(inverse(3)), Ngrams((0.8, 0.1, 0.1), words=False), WordSpans(), WordSpans(geometric(0.5, 3))]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.sampled_from(CHOICES), st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 2**32))
def test_what_is_scored_does_not_depend_on_what_is_shown(english, choice, sizes, seed):
    """Of every choice: tokens change nowhere but where weights > 0, targets are the text, lengths stay, no symbol is chosen, and other
    rates of showing score the same places. Rows alone and together are equal."""
    draw = np.random.default_rng(seed)
    records = [{"tokens": draw.integers(0, 4000, n).astype(np.int32)} for n in sizes]
    each = draw.choice(["piece", "word", "unit"])
    masking = Masking(english, 24, choice=choice, each=each)
    rngs = lambda: [rng(i, seed % 1000) for i in range(len(sizes))]
    out, other = masking.rows(records, rngs(), []), Masking(english, 24, mask=0.1, random=0.9, choice=choice, each=each).rows(records, rngs(), [])
    scored, n = out["weights"] > 0, np.minimum([len(r["tokens"]) for r in records], 22) + 2
    assert (out["weights"] == other["weights"]).all() and (out["targets"] == other["targets"]).all()
    assert (out["tokens"] == out["targets"])[~scored].all() and np.isin(out["targets"][scored], english.ordinary).all()
    assert out["segments"].sum(1).tolist() == n.tolist() and scored.sum(1).max() <= budget(24, 0.15, None, "up")
    for i, record in enumerate(records):
        for key, x in masking(record, rngs()[i], []).items():
            np.testing.assert_array_equal(x, out[key][i])


def test_chance_rounds_to_the_rate_on_average(english):
    """RoBERTa's floor(.15 n + U): 4 or 5 of 30 places, 4.5 on average; BERT's rounding gives 4 always."""
    out = many(Masking(english, 30, choice=Tokens("chance")), {"tokens": np.arange(5, 33, dtype=np.int32)}, 4000)
    found = out["weights"].sum(1)
    assert set(found.tolist()) == {4, 5} and abs(found.mean() - 4.5) < 5 * 0.5 / 4000**0.5


def test_settings_that_cannot_be(abc):
    with pytest.raises(UserError, match="each is 'words'; it may be one of 'piece', 'unit', 'word'"):
        Masking(abc, 8, each="words")
    for wrong in (dict(rate=0), dict(rate=1.5), dict(mask=0.8, random=0.3), dict(mask=-0.1), dict(length=2)):
        with pytest.raises(UserError, match="masking"):
            Masking(abc, **{"length": 8, **wrong})
    abc.mask = abc.cls = None
    with pytest.raises(UserError, match="lacks cls, mask"):
        Masking(abc, 8)(example(abc), rng(), [])


@pytest.fixture(scope="module")
def pieces(words):
    """Words of one to four pieces; "##x" goes on with its word."""
    class Pieces(words):
        def starts(self, ids):
            return ~np.char.startswith(np.array(self.words)[ids], "##")

    return Pieces(["un", "##aff", "##able", "dog", "cat", "##s", "hen"])


def test_few_random_numbers_are_drawn(english):
    """A row of 512 with 77 targets: a word for two places and one for a target, whatever the row holds."""
    drawn = []
    for size in (0, 100, 510):
        used, word = rng(), rng().bit_generator.random_raw(334)[-1]
        Masking(english, 512, cap=77)({"tokens": np.full(size, 9, np.int32)}, used, [])
        drawn.append(used.bit_generator.random_raw() == word)
    assert drawn == [True] * 3


def test_whole_words_or_none(pieces):
    """Pitfall 1: of a word all pieces are scored or none, over 1000 generators; each piece draws what is shown."""
    out = many(Masking(pieces, 12, rate=0.4, choice=Words()), example(pieces, "un ##aff ##able dog cat ##s hen"), 1000)
    scored = out["weights"] > 0  # 4 of 9 places
    assert (scored[:, 1] == scored[:, 2]).all() and (scored[:, 2] == scored[:, 3]).all() and (scored[:, 5] == scored[:, 6]).all()
    assert not scored[:, [0, 8, 9, 10, 11]].any()
    assert set(scored.sum(1).tolist()) == {4}
    share = scored[:, [1, 4, 5, 7]].mean(0) - np.array([10, 19, 14, 19]) / 24  # of the 24 orders of the words, told by hand
    assert abs(share).max() < 5 * (0.25 / 1000) ** 0.5
    masked = (out["tokens"] == pieces.mask)[scored[:, 1]][:, 1:4]
    assert abs(masked.mean() - 0.8) < 0.03 and 0.3 < masked.all(1).mean() < 0.7  # .8 cubed of them wholly, not .8


def test_words_larger_than_the_rest_of_the_budget_are_passed_over(pieces):
    out = many(Masking(pieces, 8, rate=0.3, choice=Words()), example(pieces, "un ##aff ##able dog"), 300)  # 2 of 6 places
    assert (out["weights"] == np.array([0, 0, 0, 0, 1, 0, 0, 0])).all()
    out = many(Masking(pieces, 8, rate=0.3, choice=Words()), example(pieces, "un ##aff ##able"), 300)
    assert not out["weights"].any()
    out = many(Masking(pieces, 8, rate=0.5, choice=Words()), example(pieces, "un ##aff ##able dog"), 1000)  # 3 of 6
    assert {tuple(np.flatnonzero(row).tolist()) for row in out["weights"]} == {(1, 2, 3), (4,)}


def test_a_row_that_begins_inside_a_word(pieces):
    out = many(Masking(pieces, 6, rate=0.4, choice=Words()), example(pieces, "##s cat ##s"), 100)  # 2 of 5 places
    assert {tuple(np.flatnonzero(row).tolist()) for row in out["weights"]} == {(1,), (2, 3)}


def test_sentencepiece_words(english):
    """A lower bar begins a word; unknown characters inside one never part it."""
    masking = Masking(english, 16, rate=0.4, choice=Words())
    tokens = english.encode("unfathomable whales \u263a\u263ainside")
    out = many(masking, {"tokens": tokens}, 400)
    word = np.cumsum(english.starts(tokens)) - 1
    free = np.isin(tokens, english.ordinary)
    scored = out["weights"][:, 1 : len(tokens) + 1] > 0
    assert word.max() == 2 and not free.all() and len(tokens) > 6
    for w in range(3):
        mine = scored[:, (word == w) & free]
        assert (mine.all(1) | ~mine.any(1)).all()
    assert scored.any(0)[free].all() and not scored[:, ~free].any()


def test_electra_generator_input(english):
    """Released: 85 % of the chosen masked, the rest kept, none random; no place twice, so the budget is met."""
    out = many(Masking(english, 128, mask=0.85, random=0.0), {"tokens": np.arange(5, 131, dtype=np.int32)}, 3000)
    chosen = out["weights"] > 0
    shown, target = out["tokens"][chosen], out["targets"][chosen]
    assert (chosen.sum(1) == 19).all() and ((shown == english.mask) | (shown == target)).all()
    assert abs((shown == english.mask).mean() - 0.85) < 0.01


def brute(p, mask, random):
    """The same bound from the joint table of target and shown id (the last column is MASK)."""
    n = len(p)
    joint = np.concatenate([p[:, None] * (random / n + (1 - mask - random) * np.eye(n)), mask * p[:, None]], axis=1)
    posterior = joint / joint.sum(0, keepdims=True).clip(1e-300)
    return -(joint * np.log(posterior.clip(1e-300))).sum()


@pytest.mark.parametrize("mask, random", [(0.8, 0.1), (1, 0), (0, 0), (0, 1), (0.8, 0), (0.3, 0.3)])
def test_no_context_bound_against_the_table(mask, random):
    counts = np.array([50, 20, 7, 1, 0, 0, 3])
    p = counts / counts.sum()
    found = no_context_bound(counts, mask, random)
    assert found["bound"] == pytest.approx(brute(p, mask, random), abs=1e-12)
    assert found["unigram"] == pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum())
    assert found["majority"] == pytest.approx(50 / 81)
    assert found["bound"] <= found["unigram"] + 1e-12


def test_no_context_bound_extremes(abc):
    counts = np.array([9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 9, 9, 9])  # those of special ids do not count
    readout = Masking(abc, 8).readout().bound(counts)
    assert readout["bound"] == pytest.approx(readout["unigram"])
    assert readout["majority"] == pytest.approx(12 / 78)
    assert Masking(abc, 8, mask=0, random=0).bound(counts)["bound"] == pytest.approx(0)
    assert Masking(abc, 8).bound(counts)["bound"] < readout["unigram"] - 0.1
    with pytest.raises(ValueError, match="not all 0"):
        no_context_bound(np.zeros(3), 0.8, 0.1)
