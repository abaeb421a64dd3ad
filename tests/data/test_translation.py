"""Texts in two languages: cuts of columns, and XLM's two objectives."""
import collections
import pickle

import numpy as np
import ptmjax.tasks  # noqa: F401  registers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data import registry
from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.data.records import build
from ptmjax.data.translation import Column, Lines, Monolingual, Parallel, Tlm
from ptmjax.data.windows import Blocks, Sentences
from ptmjax.types import UserError

PAIRS = ["a b c\tx y", "d\tz", "no translation", " \tblank", "e f g h\tw w w w"]


def pieces(vocabulary, ids):
    return " ".join(vocabulary.piece(i) for i in ids)


@pytest.fixture
def letters(words):
    return words(list("abcdefghwxyz"))


def cut(of, documents, vocabulary):
    counts = collections.Counter()
    return list(of(documents, vocabulary, counts)), counts


# ------------------------------------------------------------------ cuts
def test_a_column_is_a_text_of_its_own(letters):
    """Lines without it are passed over; so many lines are a document of the cut."""
    found, counts = cut(Column(Lines(4), 1, lines=2), PAIRS, letters)
    assert [pieces(letters, r["tokens"]) for r in found] == ["x y [SEP] z", "[SEP] [UNK] [SEP] w", "w w w [SEP]"]
    assert counts["documents"] == 2 and counts["tokens"] == 3 + 5
    found, _ = cut(Column(Blocks(9), 0, lines=9), PAIRS, letters)
    assert [pieces(letters, r["tokens"]) for r in found] == ["a b c d [UNK] [UNK] e f g", "h"]
    assert Column(Sentences(9), 0).schema == Sentences(9).schema
    for wrong in (dict(column=-1), dict(column=0, lines=0)):
        with pytest.raises(UserError, match="give one from 0, and at least 1 line"):
            Column(Blocks(9), **wrong)


def test_a_short_rest_of_a_stream_is_dropped_and_counted(letters):
    found, counts = cut(Lines(4, minimum=2), ["a b c", "d e"], letters)
    assert [pieces(letters, r["tokens"]) for r in found] == ["a b c [SEP]", "d e [SEP]"] and counts["dropped_tokens"] == 0
    found, counts = cut(Lines(4, minimum=4), ["a b c", "d e"], letters)
    assert len(found) == 1 and counts["dropped_tokens"] == 3
    with pytest.raises(UserError, match="the shortest block, 5, must lie in 1..4"):
        Lines(4, minimum=5)


def test_pairs_fill_a_record_side_by_side(letters):
    found, counts = cut(Parallel(9), PAIRS, letters)
    assert [(pieces(letters, r["tokens"]), r["middle"].tolist()) for r in found] == [
        ("a b c [SEP] d x y [SEP] z", [5]), ("e f g h w w w w", [4])]
    assert counts == {"documents": 5, "tokens": 7 + 8, "dropped": 2, "too_long": 0}
    found, counts = cut(Parallel(5), PAIRS, letters)
    assert [pieces(letters, r["tokens"]) for r in found] == ["a b c x y", "d z"] and counts["too_long"] == 1
    with pytest.raises(UserError, match="a pair of texts in 1 tokens"):
        Parallel(1)


# ------------------------------------------------------------------ corruptions
class Same:
    """A vocabulary whose cls and sep are one id, as XLM's </s>."""

    def __init__(self, vocabulary):
        self.vocabulary, self.cls = vocabulary, vocabulary.sep

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.vocabulary, name)


def record(vocabulary, a, b):
    sides = [vocabulary.encode(a), vocabulary.encode(b)]
    return {"tokens": np.concatenate(sides), "middle": np.array([len(sides[0])], np.int32)}


def test_tlm_golden(letters):
    """Pitfall 26: `S a b c S S x y S` -> positions 0 1 2 3 4 0 1 2 3, languages five 0 then four 1."""
    out = Tlm(Masking(Same(letters), 12), (0, 1))(record(letters, "a b c", "x y"), counter(0, "t", 0, 0), [])
    assert pieces(letters, out["targets"]) == "[SEP] a b c [SEP] [SEP] x y [SEP]" + 3 * " [PAD]"
    assert out["positions"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]
    assert out["languages"].tolist() == [0] * 5 + [1] * 4 + [0] * 3
    assert out["segments"].tolist() == [1] * 9 + [0] * 3
    out = Tlm(Masking(letters, 12, types=True), (4, 2))(record(letters, "a b c", "x y"), counter(0, "t", 0, 0), [])
    assert pieces(letters, out["targets"]) == "[CLS] a b c [SEP] [CLS] x y [SEP]" + 3 * " [PAD]"
    assert out["languages"].tolist() == [4] * 5 + [2] * 4 + [0] * 3 and out["types"].tolist() == [0] * 5 + [1] * 4 + [0] * 3


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(6, 24), st.integers(0, 9))
def test_tlm_of_any_sides(words, m, n, length, seed):
    """Both sides are there, the longer is cut; symbols are never predicted; a row alone is as among others."""
    letters = words(list("abcdefghwxyz"))
    tlm = Tlm(Masking(letters, length, rate=0.5))
    example = {"tokens": np.concatenate([np.full(m, 3), np.full(n, 9)]).astype(np.int32), "middle": np.array([m], np.int32)}
    out = tlm(example, counter(seed, "t", 0, 0), [])
    both = tlm.rows([record(letters, "a", "x"), example], [counter(1, "t", 0, 0), counter(seed, "t", 0, 0)], [])
    assert all((both[key][1] == x).all() and both[key].dtype == x.dtype for key, x in out.items())
    a, b = (out["targets"] == 3).sum(), (out["targets"] == 9).sum()
    assert a + b == min(m + n, length - 4) and (a == m or a >= b - 1) and (b == n or b >= a - 1)
    real = out["segments"] > 0
    assert real.sum() == a + b + 4 and set(out) == set(tlm.features)
    assert not out["weights"][np.isin(out["targets"], sorted(letters.special))].any()
    assert out["positions"][real].tolist() == [*range(a + 2), *range(b + 2)]
    assert out["languages"][real].tolist() == [0] * (a + 2) + [1] * (b + 2)


def test_the_masked_share_of_each_side():
    """15 % of a row's tokens, of either side by its length, and 80/10/10 of those."""
    masking = Masking(registry.read("en_zh_tlm_64").vocabulary, 104)
    a, b = np.full(60, 300, np.int32), np.full(40, 400, np.int32)
    out = Tlm(masking).rows([{"tokens": np.concatenate([a, b]), "middle": np.array([60], np.int32)}] * 2000,
                            [counter(0, "t", i, 0) for i in range(2000)], [])
    scored = out["weights"] > 0
    assert (scored.sum(1) == 16).all()
    share = [scored[out["targets"] == side].mean() for side in (300, 400)]
    assert share == pytest.approx([0.16, 0.16], abs=0.005)
    assert (out["tokens"] == masking.vocabulary.mask)[scored].mean() == pytest.approx(0.8, abs=0.01)
    assert (out["tokens"] == out["targets"])[scored].mean() == pytest.approx(0.1, abs=0.01)


def test_monolingual_rows_have_a_language(letters):
    mono = Monolingual(Masking(letters, 8), 3)
    out = mono({"tokens": letters.encode("a b c")}, counter(0, "t", 0, 0), [])
    assert out["languages"].tolist() == [3] * 5 + [0] * 3 and out["positions"].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert set(out) == set(mono.features) == set(Tlm(Masking(letters, 8)).features)
    assert pickle.loads(pickle.dumps(mono)).language == 3
    assert mono.readout().masking.mask == 1 and mono.readout().view == Masking(letters, 8).readout().view and mono.view == ""


def test_faults(letters):
    with pytest.raises(UserError, match="two sides need rows of at least 6 tokens"):
        Tlm(Masking(letters, 5))
    with pytest.raises(UserError, match=r"cut the text with translation.Parallel"):
        Tlm(Masking(letters, 9))({"tokens": letters.encode("a")}, counter(0, "t", 0, 0), [])


# ------------------------------------------------------------------ shipped
def test_shipped_tasks_of_two_languages(tmp_path):
    """Held-out rows of each; no line is held out of one and trained on in another; few characters are unknown."""
    mixture = registry.read("en_zh_mlm_tlm_128")
    held = {task.name: build(task, "validation", str(tmp_path), workers=1, progress=False) for task in mixture.tasks}
    assert list(held) == ["en_zh_mlm_en_128", "en_zh_mlm_zh_128", "en_zh_tlm_128"] and mixture.exponents
    assert mixture.shares([900, 90, 5]) == pytest.approx((0.5 * 10**0.7 / (1 + 10**0.7), 0.5 / (1 + 10**0.7), 0.5))
    v, counts = mixture.vocabulary, {name: records.counts for name, records in held.items()}
    assert v.size == 4096 and all(c[v.unk] / c.sum() < 0.005 for c in counts.values())
    for kind, exponent in (("nsp", 0.7), ("plain", 0.3), ("mlm", 0.7)):
        assert registry.read(f"en_zh_{kind}_512").exponent == exponent
    one, other = (np.array([x["tokens"] for x in list(held[n])[:5]]) for n in ("en_zh_mlm_en_128", "en_zh_mlm_zh_128"))
    assert one.shape == other.shape == (5, 126) and not (one == other).all(1).any()
    assert np.mean([len(r["tokens"]) for r in held["en_zh_tlm_128"]]) > 95
