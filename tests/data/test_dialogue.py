import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptmjax.data.dialogue import Dialogue, Turns, fit, turns_of
from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.data.windows import Blocks, Segmented
from ptmjax.types import UserError


def rngs(n, epoch=0):
    return [counter(0, "t", i, epoch) for i in range(n)]


def test_ways_to_write_a_dialogue():
    assert turns_of("Q: a\nR: b\nr：c\nq : d") == [(0, "a"), (1, "b"), (1, "c"), (0, "d")]
    assert turns_of("问：你好\n答： 好") == [(0, "你好"), (1, "好")] and turns_of("a b\tc\nd\te") == [(0, "a b"), (1, "c"), (0, "d"), (1, "e")]
    assert turns_of("a\nb\n \nc\nR: d\ne") == [(0, "a"), (1, "b"), (0, "c"), (1, "d"), (0, "e")]
    assert turns_of("Q:\nR: \n") == [] and turns_of("Q: at 5: go") == [(0, "at 5: go")]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 30))
def test_the_longest_lose_their_ends(sizes, most):
    parts = fit([np.arange(n) for n in sizes], most)
    left = [len(p) for p in parts]
    assert all((p == np.arange(len(p))).all() for p in parts) and (sum(left) <= most or sum(sizes) <= most)
    cut = [b for a, b in zip(sizes, left) if b < a]
    assert not cut or max(left) == min(cut) == max(cut) and sum(left) > most - len(cut)  # one more token each would not fit
    assert sum(sizes) > most or left == sizes


def test_records_of_up_to_three_turns_share_one(abc):
    counts = collections.Counter()
    made = list(Turns(9)(["Q: a b\nR: c\nQ: d\nR: e f\nR: g", "Q: a\nR: b", "h", "Q:"], abc, counts))
    said = [([abc.decode(t) for t in np.split(r["tokens"], r["starts"][1:])], r["roles"].tolist()) for r in made]
    assert said == [(["a b", "c", "d"], [0, 1, 0]), (["d", "e f", "g"], [0, 1, 1]), (["a", "b"], [0, 1]), (["h"], [0])]
    assert made[0]["document"] == made[1]["document"] != made[2]["document"]
    assert counts == dict(documents=4, dropped=1, lone_turns=1, tokens=11, dropped_tokens=0)
    assert {key: x.dtype.name for key, x in made[0].items()} == Turns.schema
    (record,) = Turns(4)(["Q: a b c d e\nR: f"], abc)
    assert abc.decode(record["tokens"]) == "a b c f" and record["starts"].tolist() == [0, 3]


@pytest.fixture
def found(abc):
    return list(Turns(9)(["Q: a b\nR: c\nQ: d", "Q: e\nR: f g\nR: h", "Q: i j\nR: k"], abc))


def test_rows_have_roles_and_half_of_them_one_turn_of_another_dialogue(abc, found):
    n = 3000
    out = Dialogue(Masking(abc, 14)).rows([found[0]] * n, rngs(n), found)
    rows = {(tuple(row), label) for row, label in zip(out["targets"].tolist(), out["label"].tolist())}
    real = [2, 3, abc.sep, 4, abc.sep, 5, abc.sep]
    assert {row for row, label in rows if label == 0} == {(abc.cls, *real, *[abc.pad] * 6)}
    assert abs(out["label"].mean() - 0.5) < 0.03 and (out["row_weights"] == 1).all()
    own, others = [[2, 3], [4], [5]], [[6], [7, 8], [9], [10, 11], [12]]
    fakes = {tuple(tuple(p) for p in (x if i == at else own[i] for i in range(3))) for at in range(3) for x in others}
    cut = lambda row: tuple(tuple(x.tolist()) for x in np.split(np.array(row), [i for i, t in enumerate(row) if t == abc.sep]))
    seen = {tuple(tuple(t for t in part if t not in (abc.cls, abc.sep)) for part in cut(row)[:3]) for row, label in rows if label}
    assert seen == fakes  # any turn, by any turn of the others
    i = out["label"].tolist().index(0)
    assert out["types"][i].tolist() == [2, 2, 2, 2, 3, 3, 2, 2] + [0] * 6 and out["segments"][i].sum() == 8
    zero = Dialogue(Masking(abc, 14), role=0, fake=0.0).rows([found[1]], rngs(1), found)
    assert zero["types"][0, :9].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0] and zero["label"] == 0
    assert set(Dialogue(Masking(abc, 14, types=True)).features) == out.keys()


def test_both_roles_are_masked_and_the_readout_is_all_mask(abc, found):
    dialogue = Dialogue(Masking(abc, 14, rate=0.3), fake=1.0)
    out = dialogue.readout().rows([found[1]] * 300, rngs(300), found)
    scored = out["weights"] > 0
    assert (out["tokens"][scored] == abc.mask).all() and {2, 3} <= set(out["types"][scored].tolist())
    assert (out["label"] == 1).all() and dialogue.readout().view and dialogue.bound(np.ones(abc.size)).keys() >= {"unigram"}


def test_one_dialogue_and_one_turn(abc, found):
    alone = Dialogue(Masking(abc, 14), fake=1.0).rows([found[0]] * 50, rngs(50), found[:1])
    assert not alone["label"].any() and alone["row_weights"].all()
    (one,) = Turns(9)(["a b"], abc)
    single = Dialogue(Masking(abc, 14), fake=1.0).rows([one] * 20, rngs(20), [one, *found])
    assert not single["label"].any() and not single["row_weights"].any() and single["weights"].any()


def test_a_row_depends_on_its_own_generator_and_long_turns_are_cut(abc, found):
    dialogue = Dialogue(Masking(abc, 9))
    many = dialogue.rows([found[0]] * 20, rngs(20), found)
    each = [dialogue(found[0], rng, found) for rng in rngs(20)]
    assert all((many[key][i] == one[key]).all() for i, one in enumerate(each) for key in one)
    assert (many["segments"].sum(1) <= 9).all()


def test_words_are_marked_in_turns(found, tmp_path):
    from ptmjax.data.segmenters import Jieba
    from ptmjax.data.wordpiece import WordPiece

    (tmp_path / "v.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我喜欢你"]), encoding="utf-8")
    (tmp_path / "d.txt").write_text("喜欢 9 v\n", encoding="utf-8")
    cut = Segmented(Turns(20), Jieba(str(tmp_path / "d.txt"), hmm=False))
    (record,) = cut(["Q: 我喜欢你\nR: 喜欢我"], WordPiece(str(tmp_path / "v.txt")))
    assert record["words"].tolist() == [1, 1, 0, 1, 1, 0, 1] and record["starts"].tolist() == [0, 4] and record["roles"].tolist() == [0, 1]


def test_settings_that_cannot_be(abc, found):
    with pytest.raises(UserError, match="fake 1.5 is a share"):
        Dialogue(Masking(abc, 14), fake=1.5)
    with pytest.raises(UserError, match="too short for dialogues of 3 turns"):
        Dialogue(Masking(abc, 6)).rows(found[:1], rngs(1), found)
    with pytest.raises(UserError, match="cut the text with dialogue.Turns"):
        Dialogue(Masking(abc, 14))(next(Blocks(5)(["a b"], abc)), rngs(1)[0], found)
    for turns, length in ((1, 9), (3, 2)):
        with pytest.raises(UserError):
            Turns(length, turns)
    assert dataclasses.replace(Turns(9), turns=2) == Turns(9, 2)
