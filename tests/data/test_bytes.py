import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from ptmjax.data.bytes import Bytes
from ptmjax.data.choices import Tokens, Words
from ptmjax.data.masking import Masking


@given(st.text())
def test_every_text_comes_back_and_gives_no_symbol(text):
    v = Bytes()
    ids = v.encode(text)
    assert v.decode(ids) == text and len(ids) == len(text.encode())
    assert not np.isin(ids, sorted(v.special)).any() and "".join(v.decode([i]) for i in v.encode(text) if i < 131) == "".join(c for c in text if ord(c) < 128)


@given(st.lists(st.integers(-5, 400)))
def test_any_ids_decode(ids):
    for v in (Bytes(), Bytes(125)):
        assert isinstance(v.decode(ids), str)


def test_as_byt5():
    theirs, ours = ByT5Tokenizer(), Bytes(125)
    assert ours.encode("héllo 世界").tolist() == theirs("héllo 世界", add_special_tokens=False).input_ids
    assert (ours.pad, ours.eos, ours.unk, ours.size) == (theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id, len(theirs))
    assert ours.cls is None and ours.piece(ours.size - 1) == "<extra_id_0>" and ours.ordinary.tolist() == list(range(3, 259))


def test_symbols_stand_behind_the_bytes():
    v = Bytes()
    assert (v.size, v.cls, v.sep, v.mask, v.eos) == (262, 259, 260, 261, 1)
    assert [v.piece(i) for i in (0, 1, 2, 3 + 65, 3, 261)] == ["<pad>", "</s>", "<unk>", "A", "<0x00>", "[MASK]"]
    assert v.fingerprint != Bytes(3).fingerprint


def test_words_begin_behind_white_space():
    v = Bytes()
    ids = np.r_[v.cls, v.encode("ab  c\nd"), v.sep, v.pad]
    assert v.starts(ids).tolist() == [True, True, False, False, True, True, False, True, True, True]
    assert v.starts(np.stack([ids, ids])).tolist() == [v.starts(ids).tolist()] * 2


@pytest.mark.parametrize("whole", (False, True))
def test_masking_takes_bytes(whole):
    v = Bytes()
    row = Masking(v, 64, choice=Words() if whole else Tokens())({"tokens": v.encode("the quick brown fox jumps over the lazy dog")}, np.random.default_rng(0), [])
    assert 0 < row["weights"].sum() <= 7 and not np.isin(row["targets"][row["weights"] > 0], sorted(v.special)).any()
