import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from ptmjax.tasks.corpora import EN_PD_4096

from ptmjax.data.vocabulary import SentencePiece
from ptmjax.types import UserError

ENGLISH = SentencePiece(str(Path(__file__).parents[2] / "tasks" / "shipped" / "en_pd_4096.model"))


def test_shipped_ids(english):
    assert (english.size, english.pad, english.unk, english.cls, english.sep, english.mask) == (4096, 0, 1, 2, 3, 4)
    assert english.special == {0, 1, 2, 3, 4}
    assert english.ordinary.tolist() == list(range(5, 4096))
    assert [english.piece(i) for i in (2, 3, 4)] == ["[CLS]", "[SEP]", "[MASK]"]


def test_round_trip_and_word_starts(english):
    ids = english.encode("The whale swam in the sea.")
    assert ids.dtype == np.int32
    assert english.decode(ids) == "the whale swam in the sea."
    assert english.starts(ids).sum() == 6
    assert english.starts(ids)[0] and not english.starts(ids)[-1]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.text() | st.sampled_from(["[MASK]", "[CLS] a [SEP]", "<pad>", "<unk>"]))
def test_text_never_gives_a_special_id(text):
    assert set(ENGLISH.encode(text).tolist()) & ENGLISH.special <= {ENGLISH.unk}


def test_space_is_folded_and_accents_are_not(english):
    assert english.encode("a\nb").tolist() == english.encode("a b").tolist() == english.encode("a   b").tolist()
    assert english.encode("\ufb01n\u2026").tolist() == english.encode("fin...").tolist()
    assert english.encode("Sea").tolist() == english.encode("sEA").tolist()
    assert english.encode("mochte").tolist() != english.encode("möchte").tolist()


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(-5, 5000)))
def test_decode_never_raises(ids):
    assert isinstance(ENGLISH.decode(ids), str)


def test_decode_shows_unk_for_padding_and_unknown_ids(english):
    unk = english.decode([english.unk])
    assert unk.strip() == "⁇"
    assert english.decode([4096]) == english.decode([4100]) == english.decode([-1]) == english.decode([english.pad]) == unk
    sea = english.encode("sea").tolist()
    assert english.decode([4200, *sea]).endswith("sea")


def test_pickles_as_its_path(english):
    english.encode("read")
    assert len(pickle.dumps(english)) < 1000
    assert pickle.loads(pickle.dumps(english)).encode("the sea").tolist() == english.encode("the sea").tolist()


def test_missing_or_wrong_file(tmp_path):
    lazy = SentencePiece(str(tmp_path / "none.model"))
    with pytest.raises(UserError, match="none.model cannot be read"):
        lazy.size
    (tmp_path / "wrong.model").write_bytes(b"not a model")
    (tmp_path / "empty.model").write_bytes(b"")
    for ask in (lambda v: v.size, lambda v: v.encode("a"), lambda v: v.special, lambda v: v.mask):
        with pytest.raises(UserError, match="empty.model is not a SentencePiece model"):
            ask(SentencePiece(str(tmp_path / "empty.model")))
    with pytest.raises(UserError, match="wrong.model is not a SentencePiece model"):
        SentencePiece(str(tmp_path / "wrong.model")).encode("a")


def test_sentinels_follow_the_pieces_and_count_down(english):
    v = SentencePiece(english.path, sentinels=100)
    assert (v.size, v.sentinels, english.sentinels) == (4196, 100, 0)
    assert [v.piece(i) for i in (4195, 4194, 4096, 4095)] == ["<extra_id_0>", "<extra_id_1>", "<extra_id_99>", english.piece(4095)]
    assert v.special == english.special | set(range(4096, 4196))
    assert v.ordinary.tolist() == english.ordinary.tolist()
    assert v.encode("the sea <extra_id_0>").tolist() == english.encode("the sea <extra_id_0>").tolist()
    assert v.starts(np.array([4195, 4096, *english.encode("whale.")])).tolist() == [True, True, *english.starts(english.encode("whale."))]
    the, sea = english.encode("the"), english.encode("sea")
    assert v.decode([4195, *the, 4194, 4193, *sea, 4196]) == "<extra_id_0> the <extra_id_1> <extra_id_2> sea" + english.decode([english.unk])
    assert english.decode([4195]) == english.decode([english.unk])
    with pytest.raises(UserError, match="sentinels is -1"):
        SentencePiece(english.path, sentinels=-1)


def test_sentinels_travel_with_the_vocabulary(english):
    v = SentencePiece(english.path, sentinels=7)
    again = pickle.loads(pickle.dumps(v))
    assert (again.size, again.fingerprint, repr(again)) == (4103, v.fingerprint, repr(v))
    assert len({english.fingerprint, v.fingerprint, SentencePiece(english.path, sentinels=8).fingerprint}) == 3


NAMES = itertools.product(("owl", "cat", "dog"), ("hen", "pig", "ox"), ("Jam", "honey", "ALE"))
WORDS = [f"the {a} and the {b} went to sea with {c}" for a, b, c in NAMES]


def test_eos_is_the_models_own_or_sep(english, tmp_path):
    assert english.eos == english.sep == 3
    sentencepiece.SentencePieceTrainer.train(  # laid out as T5's: pad 0, </s> 1, unk 2, no [CLS]
        sentence_iterator=iter(WORDS), model_prefix=str(tmp_path / "t5"), vocab_size=30, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    v = SentencePiece(str(tmp_path / "t5.model"), sentinels=4)
    assert (v.pad, v.eos, v.unk, v.cls, v.sep, v.mask, v.size) == (0, 1, 2, None, None, None, 34)
    assert v.special == {0, 1, 2, 30, 31, 32, 33}


@given(st.text(st.sampled_from("ab T h é½ﬁİ你\n "), max_size=30))
def test_sentencepiece_tells_where_its_pieces_are(text):
    """The first piece of a word stands at its first character, in whatever way the text is written."""
    ids, places = EN_PD_4096.encode(text), EN_PD_4096.places(text)
    assert places.shape == ids.shape and (np.diff(places) >= 0).all() and (places < max(1, len(text))).all()
    begins = [i for i, c in enumerate(text) if not c.isspace() and (i == 0 or text[i - 1].isspace())]
    assert set(begins) <= set(places.tolist()) and not any(text[i].isspace() for i in places)
