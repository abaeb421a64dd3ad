import collections
import pickle
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.choices import Tokens, Words
from ptmjax.data.masking import Masking, budget
from ptmjax.data.order import counter
from ptmjax.data.pairs import Pairs, shorten
from ptmjax.types import UserError

L = 32


def rng(record=0, epoch=0):
    return counter(0, "t", record, epoch)


def record(document, sizes, first=5):
    """A record whose tokens count up from `first`: a token tells document and place."""
    return {"tokens": np.arange(first, first + sum(sizes), dtype=np.int32), "starts": np.cumsum([0, *sizes[:-1]], dtype=np.int32),
            "document": np.array([document], np.int32)}


def corpus(documents=20, records=2, seed=0):
    """Records of about twice a row; document d has the tokens from 5 + 200 d on, in order."""
    generator, made = np.random.default_rng(seed), []
    for d in range(documents):
        first = 5 + 200 * d
        for _ in range(records):
            sizes = generator.integers(2, 9, 12).tolist()
            made.append(record(zlib.crc32(b"%d" % d) & 0x7FFFFFFF, sizes, first))
            first += sum(sizes)
    return made


@pytest.fixture(scope="module")
def pairs(english):
    return Pairs(Masking(english, L, cap=5))


def draw(pairs, records, lookup=None, epoch=0):
    return pairs.rows(records, [rng(i, epoch) for i in range(len(records))], records if lookup is None else lookup)


def parts(out, i):
    """(A, B) of a row, checked for its form."""
    row, types, n = out["targets"][i], out["types"][i], int(out["segments"][i].sum())
    assert row[0] == 2 and row[n - 1] == 3 and (row[n:] == 0).all() and (out["segments"][i] == (np.arange(L) < n)).all()
    seps = np.flatnonzero(row == 3).tolist()
    assert (types == (np.arange(L) > seps[0]) * out["segments"][i]).all()
    a, b = row[1 : seps[0]].tolist(), row[seps[0] + 1 : n - 1].tolist()
    assert len(seps) == (2 if b else 1)
    return a, b


def of_document(token):
    return (token - 5) // 200


def run(tokens):
    return all(y - x == 1 for x, y in zip(tokens, tokens[1:]))


def test_golden(pairs):
    """One record whose sentences fill a row, of two: B follows, or is another document's."""
    lookup = [record(1, [10, 9, 10]), record(2, [29], 105)]
    out = pairs.rows([lookup[0]] * 6, [rng(i) for i in range(6)], lookup)
    assert {key: (x.shape[1:], x.dtype.name) for key, x in out.items()} == dict(
        tokens=((L,), "int32"), targets=((L,), "int32"), weights=((L,), "float32"), segments=((L,), "int32"), types=((L,), "int32"),
        label=((), "int32"), row_weights=((), "float32"))
    found = [(len(a), b[0], len(b), int(label)) for (a, b), label in zip((parts(out, i) for i in range(6)), out["label"])]
    assert found == [(10, 110, 19, 1), (19, 24, 10, 0), (10, 110, 19, 1), (19, 24, 10, 0), (10, 15, 19, 0), (10, 15, 19, 0)]
    assert (out["row_weights"] == 1).all() and out["segments"].all()


def test_next_follows_and_other_is_another_documents_run(pairs):
    records = corpus()
    for epoch in range(8):
        out = draw(pairs, records, epoch=epoch)
        for i in range(len(records)):
            a, b = parts(out, i)
            d = of_document(records[i]["tokens"][0])
            assert a and b and run(a) and run(b) and out["row_weights"][i] == 1
            assert {of_document(t) for t in a} == {d}
            if out["label"][i]:
                assert len({of_document(t) for t in b}) == 1 and of_document(b[0]) != d
            else:
                assert {of_document(t) for t in b} == {d} and b[0] > a[-1]
                if len(a) + len(b) < L - 3:  # nothing was taken off either
                    assert b[0] == a[-1] + 1


def test_shares(english):
    """Where every sentence has 3 tokens and a record 20 of them, a row of 29 is 10 sentences; a short target of 2..29 is filled by
    one of 1 in 2 cases of 28, so B is then another document's, and by less than a row in 26."""
    records = [record(d, [3] * 20, 5 + 100 * d) for d in range(40)]
    of = lambda rows=8000, **more: draw(Pairs(Masking(english, L), **more), records * (rows // 40))
    assert abs(of(short=0.0)["label"].mean() - 0.5) < 0.0225  # four standard deviations, as below
    out = of(other=0.0)
    assert abs((out["segments"].sum(1) < L).mean() - 0.1 * 26 / 28) < 0.013
    assert not out["label"].any()  # no other document, of single sentences neither
    assert abs(of(short=1.0)["label"].mean() - (2 / 28 + 13 / 28)) < 0.0225
    assert not of(400, other=0.0, short=0.0)["label"].any() and of(400, other=1.0)["label"].all()


def test_a_is_a_random_number_of_sentences(english):
    """1 to 9 of 10, each in one row of nine; the target is overshot by a token, taken from the longer part."""
    records = [record(d, [3] * 20, 5 + 100 * d) for d in range(40)]
    pairs = Pairs(Masking(english, L), short=0.0)
    rows = [(parts(out, i), out["label"][i]) for e in range(100) for out in [draw(pairs, records, epoch=e)] for i in range(40)]
    assert all(len(a) + len(b) == 29 for (a, b), _ in rows)
    for label in (0, 1):
        found = collections.Counter(round(len(a) / 3) for (a, _), y in rows if y == label)
        assert set(found) == set(range(1, 10)) and max(abs(n - sum(found.values()) / 9) for n in found.values()) < 65  # 4.5 deviations
    assert {a[0] % 100 for (a, _), _ in rows} >= {(5 + 3 * i) % 100 for i in range(11)}  # of sentences with a row from them on


def test_lengths_do_not_tell_the_label(english):
    """Both kinds of pairs fill a row where records hold twice of it, so the best rule by the length gains nothing; where they hold
    a row at most, it tells most labels: hence the cut of the shipped tasks."""
    generator = np.random.default_rng(1)
    records = [record(d, generator.integers(2, 9, 13).tolist(), 5 + 100 * (d % 40)) for d in range(200)]
    found = {}
    for name, cut in (("twice", lambda r: r), ("once", lambda r: whole(r, L - 3))):
        mine, rows = [cut(r) for r in records], collections.defaultdict(lambda: [0, 0])
        for epoch in range(30):
            out = draw(Pairs(Masking(english, L), short=0.0), mine, epoch=epoch)
            for n, label in zip(out["segments"].sum(1).tolist(), out["label"].tolist()):
                rows[n][label] += 1
        found[name] = sum(map(max, rows.values())) / 6000
    assert found["twice"] < 0.53 and found["once"] > 0.7, found  # .5 is chance


def whole(r, length):
    ends = np.append(r["starts"][1:], len(r["tokens"]))
    last = int((ends <= length).sum())
    return {**r, "tokens": r["tokens"][: ends[last - 1]], "starts": r["starts"][:last]}


def test_where_another_documents_run_begins(english):
    """At sentences with enough tokens from them on, evenly; at the first of a record that has not so many."""
    pairs = Pairs(Masking(english, L), short=0.0, other=1.0)
    lookup = [record(1, [14, 15]), record(2, [5] * 6, 105), record(3, [4, 4], 205)]  # behind A of 14 the target wants 15
    found = collections.Counter()
    for i in range(1200):
        a, b = parts(pairs.rows([lookup[0]], [rng(i)], lookup), 0)
        assert len(a) == 14 and run(b) and len(b) == (15 if b[0] < 200 else 8)
        found[b[0]] += 1
    assert set(found) == {105, 110, 115, 120, 205}
    assert all(abs(found[x] - 150) < 48 for x in (105, 110, 115, 120)) and abs(found[205] - 600) < 70


def test_one_sentence_gets_another_document_as_in_bert(pairs):
    records = corpus()
    alone = [record(-1, [20], 4000)] * 200
    out = draw(pairs, alone, records)
    assert out["label"].all() and out["row_weights"].all()


def test_a_corpus_of_one_document(pairs):
    """B is always the next, label 0, also where the row began as one sentence, and the last."""
    records = [record(7, [4, 30, 4, 4]), record(7, [5, 5], 200)]
    for epoch in range(100):
        out = draw(pairs, records, epoch=epoch)
        assert not out["label"].any()
        for i in range(2):
            a, b = parts(out, i)
            assert b and b[0] > a[-1] and out["row_weights"][i] == 1


def test_one_document_of_one_sentence_is_not_scored(pairs):
    """Nothing follows: CLS A SEP, label 0, row_weights 0; the tokens are masked as ever."""
    for size in (1, 12, 60):
        out = draw(pairs, [record(7, [size])])
        a, b = parts(out, 0)
        assert len(a) == min(size, L - 3) and not b and run(a)
        assert out["label"][0] == out["row_weights"][0] == 0 and out["types"].sum() == 0 and out["weights"].sum() >= 1


def test_records_of_one_token_and_none(pairs):
    records = corpus()
    nothing = {"tokens": np.zeros(0, np.int32), "starts": np.zeros(0, np.int32), "document": np.array([-1], np.int32)}
    out = draw(pairs, [nothing, record(-1, [1]), record(-2, [1, 1])], records)
    assert parts(out, 0) == ([], []) and out["row_weights"].tolist() == [0, 1, 1] and out["label"][:2].tolist() == [0, 1]
    assert len(parts(out, 1)[0]) == 1 and out["weights"].sum(1)[0] == 0
    alone = pairs.rows([records[0]] * 30, [rng(i) for i in range(30)], [nothing])  # no other document holds a sentence
    assert not alone["label"].any()
    assert not pairs.rows([records[0]], [rng()], [])["label"].any()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(2, 50), st.integers(0, 100))
def test_shorten_is_berts_walk(a, b, most, seed):
    left, right = shorten(np.arange(a), np.arange(b), most, np.random.default_rng(seed))
    x, y = a, b
    while x + y > most:
        if x > y:
            x -= 1
        else:
            y -= 1
    assert (len(left), len(right)) == (x, y) and run(left.tolist()) and run(right.tolist())


def test_two_documents_over_a_thousand_generators(english):
    """Pitfall 8: a random B is never of A's document, and half of the pairs are random."""
    records, label = [record(1, [3] * 20), record(2, [3] * 20, 205)], []
    for i in range(500):
        out = draw(Pairs(Masking(english, L), short=0.0), records, epoch=i)
        for row in (0, 1):
            a, b = parts(out, row)
            assert {of_document(t) for t in a} == {row} and {of_document(t) for t in b} == {row ^ int(out["label"][row])}
        label += out["label"].tolist()
    assert len(label) == 1000 and abs(np.mean(label) - 0.5) < 0.05


def test_ten_and_four_of_eight_are_four_and_four():
    """Pitfall 8: the longer side loses tokens first, from either end."""
    found = [shorten(np.arange(10), np.arange(4), 8, np.random.default_rng(i)) for i in range(50)]
    assert {(len(a), b.tolist() == [0, 1, 2, 3]) for a, b in found} == {(4, True)} and len({int(a[0]) for a, _ in found}) > 3


def test_shorten_takes_from_both_ends():
    front = [int(shorten(np.arange(30), np.arange(10), 20, np.random.default_rng(i))[0][0]) for i in range(2000)]
    assert abs(np.mean(front) - 10) < 0.25 and abs(np.var(front) - 5) < 0.7  # binomial(20, .5)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 1000), st.booleans())
def test_rows_are_what_each_row_is_alone(english, sizes, epoch, whole):
    pairs = Pairs(Masking(english, L, choice=Words() if whole else Tokens()), short=0.3)
    records = [record(i % 3, s, 5 + 200 * i) for i, s in enumerate(sizes)]
    together = draw(pairs, records, epoch=epoch)
    for i, r in enumerate(records):
        for key, x in pairs(r, rng(i, epoch), records).items():
            np.testing.assert_array_equal(x, together[key][i])
        parts(together, i)
    n = together["segments"].sum(1)
    if not whole:
        assert (together["weights"].sum(1) == np.minimum(budget(n, 0.15, None), np.isin(together["targets"], english.ordinary).sum(1))).all()
    assert not together["weights"][np.isin(together["targets"], [0, 2, 3])].any()


def test_masks_as_masking_does(english):
    """Shares of what is shown, over both parts; the readout has the same pairs and pieces."""
    records, pairs = corpus(), Pairs(Masking(english, L))
    outs = [(draw(pairs, records, epoch=e), draw(pairs.readout(), records, epoch=e)) for e in range(80)]
    trained, read = ({key: np.concatenate([o[i][key] for o in outs]) for key in outs[0][0]} for i in (0, 1))
    chosen = trained["weights"] > 0
    shown, target = trained["tokens"][chosen], trained["targets"][chosen]
    assert len(shown) > 15000 and abs((shown == english.mask).mean() - 0.8) < 0.015 and abs((shown == target).mean() - 0.1) < 0.015
    both = [chosen[trained["types"] == t].mean() for t in (0, 1)]
    assert min(both) > 0.1
    assert all((trained[key] == read[key]).all() for key in trained if key != "tokens")
    assert (read["tokens"][chosen] == english.mask).all() and pairs.readout().view and not pairs.view
    counts = np.arange(4096)
    assert pairs.bound(counts) == Masking(english, L).bound(counts)


def test_features_pickle_and_faults(english, pairs):
    assert pairs.features == tuple(draw(pairs, corpus(2)))
    assert Pairs(Masking(english, L, types=True)).features.count("types") == 1
    again = pickle.loads(pickle.dumps(pairs))
    assert (draw(again, corpus(2))["tokens"] == draw(pairs, corpus(2))["tokens"]).all() and len(pickle.dumps(pairs)) < 1000
    with pytest.raises(UserError, match="cut the text with windows.Sentences"):
        draw(pairs, [{"tokens": np.array([5], np.int32), "document": np.array([1], np.int32)}])
    with pytest.raises(UserError, match="at least 5 tokens"):
        Pairs(Masking(english, 4))
    for wrong in (dict(short=1.1), dict(other=-0.1)):
        with pytest.raises(UserError, match="are shares of rows"):
            Pairs(Masking(english, 8), **wrong)


@pytest.mark.parametrize("other, swapped, shares", [
    (0.0, 0.5, (0.5, 0.5)), (1 / 3, 1 / 3, (1 / 3, 1 / 3, 1 / 3)), (0.0, 0.0, (1.0,)), (0.5, 0.0, (0.5, 0.5)), (0.2, 0.8, (0.0, 0.8, 0.2)),
])
def test_labels_of_every_sentence_objective(english, other, swapped, shares):
    """Sentence order, three ways, none, next sentence: labels balanced as asked, and each says what the row holds: a record's tokens
    rise from sentence to sentence, those of another document are others."""
    records = [record(d, [3] * 20, 5 + 100 * d) for d in range(40)]
    pairs = Pairs(Masking(english, L), short=0.0, other=other, swapped=swapped)
    out = draw(pairs, records * 100)
    n = len(out["label"])
    found = np.bincount(out["label"], minlength=len(shares)) / n
    assert len(found) == len(shares) and abs(found - shares).max() <= 4 * (0.25 / n) ** 0.5 and (out["row_weights"] == 1).all()
    second = out["types"].argmax(1)
    first, then = out["targets"][:, 1], out["targets"][np.arange(n), second]
    same = (first - 5) // 100 == (then - 5) // 100
    kind = np.where(~same, "other", np.where(then > first, "next", "swapped"))
    assert (kind == np.array(pairs.kinds)[out["label"]]).all()


def test_sentence_order_of_short_texts(english):
    """A row of one sentence that another follows takes it; a record of one sentence has no order: not scored, its masks are."""
    pairs = Pairs(Masking(english, L), short=0.0, other=0.0, swapped=0.5)
    long, lone = record(0, [26, 26], 5), record(1, [10], 500)
    out = draw(pairs, [long] * 400 + [lone])
    assert abs(out["label"][:400].mean() - 0.5) < 0.1 and (out["row_weights"][:400] == 1).all()
    assert out["row_weights"][400] == 0 and out["label"][400] == 0 and out["weights"][400].any()


def test_shares_beyond_one(english):
    with pytest.raises(UserError, match="at most 1 together"):
        Pairs(Masking(english, L), other=0.6, swapped=0.5)


def test_pairs_of_single_sentences(english):
    """RoBERTa's SENTENCE-PAIR: whatever the label says, each part is one sentence, so that lengths tell nothing of it."""
    records, lookup = corpus(), {}
    for r in records:
        ends = [*r["starts"][1:], len(r["tokens"])]
        runs = [tuple(r["tokens"][i:j].tolist()) for i, j in zip(r["starts"], ends)]
        lookup |= {run: (int(r["document"][0]), number) for number, run in enumerate(runs)}
    out = draw(Pairs(Masking(english, L, cap=5), alone=True), records * 20, records)
    found = [[lookup[tuple(part)] for part in parts(out, i)] for i in range(len(records) * 20)]
    for (a, b), label in zip(found, out["label"]):
        assert b[0] != a[0] if label else b[0] == a[0] and b[1] == a[1] + 1
    assert abs(out["label"].mean() - 0.5) < 4 * (0.25 / len(found)) ** 0.5 and len({a for a, _ in found}) > 150
    lone = draw(Pairs(Masking(english, L, cap=5), alone=True), [record(1, [6])] * 8, [record(1, [6]), record(2, [3, 4], 99)])
    assert (lone["label"] == 1).all() and all(parts(lone, i)[1] in ([99, 100, 101], [102, 103, 104, 105]) for i in range(8))
