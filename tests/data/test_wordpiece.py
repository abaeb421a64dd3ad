"""WordPiece against transformers' BertTokenizerFast, and as every vocabulary must be."""
import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ptmjax.data.choices import Words
from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import UserError

SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["un", "##aff", "##able", "dog", "The", "the", "whale", "##s", "##S", "a", "##a", "b", "##b", "c", "##c", "i", "##i", "é", "e", "##e",
         "ß", "ss", "##s1", "!", ".", ",", "[", "]", "mask", "##mask", "你", "好", "й", "и", "##й", "İ", "\u0307", "😀", "1", "##1", "2", "##2", "mochte", "Mochte", "möchte", "Möchte"]
PIECES = ["[PAD]", "[unused0]", "[unused1]", *SYMBOLS[1:], *WORDS]
ODD = ["unaffable whales", "Unaffable DOG.", "d\u00f6g", "e\u0301 \u00e9", "\u0130i \u0131", "stra\u00dfe ss", "\u4f60\u597d\u554a", "\U0001f600a", "a\u200bb",
       "a\u00a0b\u3000c", "a\tb\nc\rd", "a\x00b\ufffdc\x07", "\u0439 \u0438\u0306", "\ufb01sh", "a" * 101, "a" * 100, "ab" * 50, "a-b_c", "'a''b'", "\u2028a\u2029",
       "\U00020000\uf900", "a\u0300\u0301b", "\u0600a", "", "   ", "[mask] a", "\u200d", "$a+b=c^1`|~", "the##s ##s"]


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def both(request, tmp_path_factory):
    """(ours from vocab.txt, ours from tokenizer.json, transformers') for uncased and cased."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("wordpiece")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    theirs = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=request.param)
    theirs.save_pretrained(folder)
    return WordPiece(folder / "vocab.txt", lower=request.param), WordPiece(folder / "tokenizer.json"), theirs


def ids_of(theirs, text):
    return theirs(text, add_special_tokens=False)["input_ids"]


def test_pieces_and_ids(both):
    for ours in both[:2]:
        assert [ours.piece(i) for i in range(ours.size)] == PIECES
        assert (ours.size, ours.pad, ours.unk, ours.cls, ours.sep, ours.mask, ours.eos) == (len(PIECES), 0, 3, 4, 5, 6, 5)
        assert ours.special == set(range(7)) and ours.ordinary.tolist() == list(range(7, len(PIECES)))
        assert ours.pad == both[2].pad_token_id and ours.mask == both[2].mask_token_id


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_as_transformers(both, text):
    *ours, theirs = both
    assert [v.encode(text).tolist() for v in ours] == [ids_of(theirs, text)] * 2
    assert ours[0].encode(text).dtype == np.int32


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(st.text(max_size=6) | st.sampled_from([w.removeprefix("##") for w in WORDS] + [" ", " ", "A", "É", "\u0301"]), max_size=12).map("".join))
def test_any_text_as_transformers(both, text):
    *ours, theirs = both
    assume(not any(symbol in text for symbol in SYMBOLS))  # these are ours to read as plain text: below
    assert [v.encode(text).tolist() for v in ours] == [ids_of(theirs, text)] * 2


def test_the_comparison_sees_words(both):
    """So that equality above is not one of unknown words alone."""
    *ours, theirs = both
    assert [PIECES[i] for i in ids_of(theirs, "unaffable whales.")] == ["un", "##aff", "##able", "whale", "##s", "."]
    assert ours[0].encode("The").tolist() == [PIECES.index("the" if theirs.do_lower_case else "The")]


def test_symbols_in_a_text_are_plain_text(both):
    *ours, theirs = both
    assert 6 in ids_of(theirs, "a [MASK] b")  # theirs reads it as the symbol
    for v in ours:
        for text in ("a [MASK] b", "[CLS][SEP][PAD]", "[unused0]", "[UNK]"):
            assert set(v.encode(text).tolist()) & v.special <= {v.unk}
    uncased = WordPiece(ours[0].path, lower=True)
    assert [uncased.piece(i) for i in uncased.encode("a [MASK] b")] == ["a", "[", "mask", "]", "b"]


def test_starts_decode_and_pickle(both):
    ours = both[0]
    ids = ours.encode("unaffable whales")
    assert ours.starts(ids).tolist() == [True, False, False, True, False]
    assert ours.decode([ours.cls, *ids, 999, -1, ours.pad]) == "[CLS] unaffable whales [UNK] [UNK] [UNK]"
    assert ours.decode([PIECES.index("##s")]) == "##s"
    assert len(pickle.dumps(ours)) < 300
    again = pickle.loads(pickle.dumps(ours))
    assert again.encode("unaffable").tolist() == ours.encode("unaffable").tolist() and repr(again) == repr(ours)
    prints = {WordPiece(ours.path, lower=lower).fingerprint for lower in (True, False, None)}
    assert len(prints) == 2 and WordPiece(ours.path).fingerprint == WordPiece(ours.path, lower=True).fingerprint
    assert both[1].fingerprint not in prints


def test_whole_words_are_masked(both):
    """Pitfall 1: of "unaffable" all pieces are scored, or none."""
    v = both[0]
    example = {"tokens": v.encode("unaffable dog whales")}
    out = Masking(v, 9, rate=0.4, choice=Words()).rows([example] * 1000, [counter(0, "t", i, 0) for i in range(1000)], [])
    assert not out["weights"][:, [0, 7, 8]].any()
    found = {tuple(np.flatnonzero(row).tolist()) for row in out["weights"]}  # 3 of 8 places
    assert found == {(1, 2, 3), (4, 5, 6)}


def test_faults_are_told(tmp_path):
    with pytest.raises(UserError, match="none.txt cannot be read"):
        WordPiece(tmp_path / "none.txt").size
    for name, content, what in (("a.txt", b"a\nb\n", "is not a WordPiece"), ("b.txt", b"\xff\xfe[UNK]\n", "is not a WordPiece"), ("c.json", b"{}", "is not a WordPiece"),
                                ("d.json", b"nonsense", "is not a WordPiece"), ("e.txt", b"", "is not a WordPiece"), ("h.json", b"[]", "is not a WordPiece"),
                                ("f.json", b'{"model": {"type": "BPE", "vocab": {}}}', "holds a BPE model"),
                                ("g.json", b'{"model": {"type": "WordPiece", "vocab": {"[UNK]": "x"}}}', "is not a WordPiece")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=what) as e:
            WordPiece(tmp_path / name).encode("a")
        assert name in str(e.value) and "\n" not in str(e.value)
    with pytest.raises(UserError, match="says itself whether case is folded"):
        WordPiece(tmp_path / "tokenizer.json", lower=True)


def test_windows_line_ends_and_pieces_said_twice(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"[UNK]\r\na\r\nb\r\na")
    v = WordPiece(tmp_path / "v.txt")
    assert v.size == 4 and v.encode("a b").tolist() == [3, 2]
    assert v.special == {0, 1} and v.pad is None and v.cls is None and v.eos is None


@pytest.mark.parametrize("lower, strip, pieces", [
    (None, None, ["mochte", "mochte"]), (True, None, ["mochte", "mochte"]), (True, False, ["möchte", "möchte"]),
    (False, None, ["möchte", "Möchte"]), (False, True, ["mochte", "Mochte"]), (None, True, ["mochte", "mochte"]),
])  # fmt: skip
def test_case_and_accents_are_two_things(tmp_path, lower, strip, pieces):
    """Pitfall 31. As transformers' tokeniser of these settings, and of the folder that is written."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    ours = WordPiece(tmp_path / "vocab.txt", lower, strip)
    assert [ours.piece(i) for i in ours.encode("möchte Möchte")] == pieces
    theirs = transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lower is not False, strip_accents=strip)
    (tmp_path / "to").mkdir()
    ours.save(tmp_path / "to", ("cls",), ("sep",), ("input_ids", "token_type_ids", "attention_mask"))
    again, pickled = transformers.AutoTokenizer.from_pretrained(tmp_path / "to"), pickle.loads(pickle.dumps(ours))
    assert eval(repr(ours)).fingerprint == pickled.fingerprint == ours.fingerprint and repr(pickled) == repr(ours)
    for text in ("möchte Möchte é É", *ODD):
        assert ours.encode(text).tolist() == ids_of(theirs, text) == ids_of(again, text) == pickled.encode(text).tolist()


def test_fingerprints_are_of_what_is_done(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    of = lambda *how: WordPiece(tmp_path / "vocab.txt", *how).fingerprint
    assert of() == of(True) == of(True, True) == of(None, True) and of(False) == of(False, False)
    assert len({of(), of(False), of(True, False), of(False, True)}) == 4
    assert of() == hashlib.sha256((tmp_path / "vocab.txt").read_bytes() + b" lower").hexdigest()  # caches are found by it
    with pytest.raises(UserError, match="leave strip_accents out"):
        WordPiece(tmp_path / "tokenizer.json", strip_accents=False)


def test_places_are_those_of_the_text(both):
    v = both[0]
    text = " unaffable  你好é 😀a"
    assert v.places(text).tolist() == [1, 3, 6, 12, 13, 14, 16, 17] and v.places("").tolist() == []
    assert len(v.places(text)) == len(v.encode(text))
