"""Byte-level BPE against transformers' RobertaTokenizer and GPT2Tokenizer, and as every vocabulary must be."""
import json
import lzma
import pickle
import shutil

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from ptmjax.tasks.corpora import EN_PD_BYTEBPE_4096, EN_PD_SMALL

from ptmjax.data.bytebpe import END, ByteBPE, bytewise
from ptmjax.data.choices import Words
from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.types import UserError

LINES = """The quick brown fox.|  Two  spaces,   three |tab\tand\ttabs\t\tmore|Ça déjà vu; naïve café|e\u0301\u0301 NFD A\u030angstro\u0308m
don't we'll I've it's they'D|12345 3.14 1,000 x2y|東京は日本の首都です。|他说：“你好！”|Привет, мир! ёлка|مرحبا بالعالم|שלום עולם|नमस्ते दुनिया
👩‍👩‍👧 🏳️‍🌈 😀😀|Ünïcödé ÀÉÎ|a\u00a0b\u3000c\u2028d|\u200bzero\u200dwidth\ufeff|ﬁ ½ ① Ⅷ|(brackets)[and]{more}|-- -> <= != ... !!!|<b>html</b> &amp;|한국어 텍스트
İ ı ß ẞ|x\u0000y\u0007z|\ufffd replacement|Ġ Ċ ▁ letters|mixed Ελληνικά and ไทย|    four ahead|trailing   |snake_case camelCase|C:\\path\\to|http://a.b/c?d=e#f|\U00020000\U0001f1e9\U0001f1ea|ﷺ""".replace("\n", "|").split("|")
ENGLISH = [line for line in lzma.open(EN_PD_SMALL, "rt").read(400_000).split("\n") if line]
TEXTS = [*LINES, *ENGLISH[5:500:7], "", " ", "\n", "a\nb\r\nc\n\nd"]
ROBERTA = ["cls"], ["sep"], ["input_ids", "attention_mask"], ["sep"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """vocab.json and merges.txt of the shipped vocabulary, as RoBERTa's lie in a folder."""
    folder = tmp_path_factory.mktemp("bytebpe")
    held = json.loads(EN_PD_BYTEBPE_4096.file[1])
    pieces = held["model"]["vocab"] | {x["content"]: x["id"] for x in held["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps(pieces))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in held["model"]["merges"]))
    return folder


def theirs(folder, **how):
    """With the mask of roberta-base, which takes the space before it along."""
    return transformers.RobertaTokenizerFast.from_pretrained(folder, mask_token=transformers.AddedToken("<mask>", lstrip=True), **how)


def test_a_hundred_lines_of_many_scripts_have_the_ids_of_transformers(folder, tmp_path):
    assert len(TEXTS) >= 100
    ours, other = ByteBPE(str(folder)), theirs(folder)
    other.save_pretrained(tmp_path)
    one_file = ByteBPE(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        want = other(text, add_special_tokens=False).input_ids
        for v in (ours, one_file, EN_PD_BYTEBPE_4096):
            assert v.encode(text).tolist() == want, text
        assert ours.decode(want) == text and ours.encode(text).dtype == np.int32


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=6) | st.sampled_from([" ", "  ", "\n", "the", "'s", "<", "é"]), max_size=9).map("".join))
def test_any_text_comes_back(text):
    ids = EN_PD_BYTEBPE_4096.encode(text)
    assert EN_PD_BYTEBPE_4096.decode(ids) == text and not set(ids.tolist()) & EN_PD_BYTEBPE_4096.special


def test_a_space_may_be_put_first(folder):
    ours, other = ByteBPE(str(folder), prefix_space=True), theirs(folder, add_prefix_space=True)
    for text in TEXTS:
        assert ours.encode(text).tolist() == other(text, add_special_tokens=False).input_ids
    assert ours.piece(ours.encode("the")[0]) == "Ġthe" and ours.fingerprint != ByteBPE(str(folder)).fingerprint
    assert eval(repr(ours)).prefix_space is pickle.loads(pickle.dumps(ours)).prefix_space is True
    with pytest.raises(UserError, match="says itself whether a space is put first"):
        ByteBPE(EN_PD_BYTEBPE_4096.path, prefix_space=True).encode("a")


def test_symbols(folder):
    v = ByteBPE(str(folder / "vocab.json"))
    assert (v.cls, v.pad, v.sep, v.eos, v.unk, v.mask, v.size) == (0, 1, 2, 2, 3, 4095, 4096)
    assert v.special == {0, 1, 2, 3, 4095} and len(v.ordinary) == 4091
    other = theirs(folder)
    assert (other.bos_token_id, other.pad_token_id, other.eos_token_id, other.unk_token_id, other.mask_token_id) == (0, 1, 2, 3, 4095)
    assert other.mask_token_id in other("a <mask>").input_ids  # theirs reads it as the symbol
    for text in ("a <mask> b", "<s></s><pad>", "<unk>", END):
        assert not set(v.encode(text).tolist()) & v.special and v.decode(v.encode(text)) == text


def test_gpt2s_one_symbol_is_eos_and_nothing_else(folder, tmp_path):
    """And what no merge makes is special, whatever its name."""
    pieces = json.loads((folder / "vocab.json").read_text())
    kept = [piece for piece in pieces if piece not in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    (tmp_path / "encoder.json").write_text(json.dumps({piece: id for id, piece in enumerate([*kept, "madeupword0000", END])}))
    shutil.copy(folder / "merges.txt", tmp_path / "vocab.bpe")
    v = ByteBPE(str(tmp_path))
    assert (v.cls, v.pad, v.sep, v.unk, v.mask, v.eos, v.size) == (None, None, None, None, None, 4092, 4093) and v.special == {4091, 4092}
    assert v.symbols == {"eos": 4092} and v.decode([v.encode("A")[0], 9999, 4092]) == f"A\ufffd{END}"
    with pytest.raises(UserError, match="masking needs pieces and the symbols"):
        Masking(v, 9).rows([{"tokens": v.encode("a b")}], [counter(0, "t", 0, 0)], [])


def test_words_begin_at_spaces():
    v = EN_PD_BYTEBPE_4096
    text = "Unfathomable whales, don't\nAhab  swam\t!"
    ids = v.encode(text)
    words = np.split(ids, np.flatnonzero(v.starts(ids))[1:] if v.starts(ids)[0] else np.flatnonzero(v.starts(ids)))
    assert [v.decode(word) for word in words] == ["Unfathomable", " whales,", " don't", "\n", "Ahab", " ", " swam", "\t", "!"]
    assert v.starts(np.array([[v.cls], [ids[0]], [v.encode(" the")[0]]])).tolist() == [[False], [False], [True]]
    assert [v.plain(i) for i in v.encode("the whale  é")] == ["the", "whale", "Ġ", "Ġ", "Ã", "©"]


def test_whole_words_are_masked():
    """Also the first, which has no space before it."""
    v = EN_PD_BYTEBPE_4096
    words = ["Unfathomable", " dog", " swam", " astonished"]
    places = np.split(np.arange(1, 14), np.cumsum([len(v.encode(word)) for word in words])[:-1])
    assert [len(p) for p in places] == [6, 2, 2, 3]
    example = {"tokens": v.encode("".join(words))}
    out = Masking(v, 17, rate=0.5, choice=Words()).rows([example] * 400, [counter(0, "t", i, 0) for i in range(400)], [])
    whole = np.stack([out["weights"][:, p].all(1) for p in places], 1)
    assert all((out["weights"][:, p].any(1) == w).all() for p, w in zip(places, whole.T)) and out["weights"][:, [0, *range(14, 17)]].sum() == 0
    assert ((0.1 < whole.mean(0)) & (whole.mean(0) < 0.9)).all()


def test_any_ids_decode():
    """Single pieces that are no whole characters, symbols, pads and ids that there are not."""
    v = EN_PD_BYTEBPE_4096
    lead, tail = v.encode("é") if len(v.encode("é")) == 2 else v.encode("ű")
    assert v.decode([lead]) == v.decode([tail]) == "\ufffd" and v.decode([lead, v.mask, tail]) == "\ufffd<mask>\ufffd"
    assert v.decode([v.cls, *v.encode("a b"), 99999, -1, v.pad]) == "<s>a b<unk><unk><unk>"
    assert all(isinstance(v.decode([i]) + v.plain(i) + v.piece(i), str) for i in range(v.size))


def test_places_are_those_of_the_words():
    v = EN_PD_BYTEBPE_4096
    text = " the whale é 你好"
    places = v.places(text)
    assert len(places) == len(v.encode(text)) and places[0] == 1 and 5 in places and (np.diff(places) >= 0).all()
    for id, place in zip(v.encode(text), places):
        if (written := v.decode([id])).isascii():
            assert text[place:].startswith(written.lstrip(" ") or " ")
    assert set(places[places > 10]) <= {11, 12, 13, 14} and v.places("").tolist() == []


@pytest.mark.parametrize("kind", ["roberta", "gpt2"])
def test_autotokenizer_opens_what_is_saved(folder, tmp_path, kind):
    v = ByteBPE(str(folder))
    v.save(tmp_path, *ROBERTA)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer, other = transformers.AutoTokenizer.from_pretrained(tmp_path), theirs(folder)
    for text in TEXTS:
        assert tokenizer(text).input_ids == [v.cls, *v.encode(text), v.sep] == other(text).input_ids, text
    one, two = list(v.encode("one")), list(v.encode("two"))
    assert tokenizer("one", "two").input_ids == [v.cls, *one, v.sep, v.sep, *two, v.sep] == other("one", "two").input_ids
    assert set(tokenizer("a")) == {"input_ids", "attention_mask"} and set(tokenizer("a", "b", return_token_type_ids=True).token_type_ids) == {0}
    assert len(tokenizer) == v.size and tokenizer("the <mask> sea").input_ids == other("the <mask> sea").input_ids  # the space goes with it
    for name, id in v.symbols.items():
        assert getattr(tokenizer, f"{name}_token_id") == id, name


def test_one_file_and_two_are_the_same_vocabulary(folder, tmp_path):
    v = ByteBPE(str(folder))
    ending, content = v.file
    (tmp_path / f"copy{ending}").write_bytes(content)
    again = v.at(str(tmp_path / "copy.json"))
    assert again.fingerprint == v.fingerprint and again.special == v.special and again._pieces == v._pieces
    assert pickle.loads(pickle.dumps(again)).encode("a whale").tolist() == v.encode("a whale").tolist()
    assert len(pickle.dumps(v)) < 300 and repr(pickle.loads(pickle.dumps(v))) == repr(v)


def test_which_paths_are_for_it(folder, tmp_path):
    (tmp_path / "wordpiece.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "odd.json").write_text("no")
    assert all(map(bytewise, (str(folder), str(folder / "vocab.json"), EN_PD_BYTEBPE_4096.path)))
    assert not any(bytewise(str(tmp_path / name)) for name in ("wordpiece.json", "list.json", "odd.json", "none.json"))


def test_faults_are_told(folder, tmp_path):
    def fault(words, path, **files):
        for name, content in files.items():
            (tmp_path / path).mkdir(exist_ok=True)
            (tmp_path / path / f"{name}").write_text(content)
        with pytest.raises(UserError, match=words) as e:
            ByteBPE(str(tmp_path / path)).encode("a")
        assert "\n" not in str(e.value) and path in str(e.value)

    pieces, merges = (folder / "vocab.json").read_text(), (folder / "merges.txt").read_text()
    fault("cannot be read", "none.json")
    fault("is a folder with neither tokenizer.json nor vocab.json nor encoder.json", "empty", **{"x.txt": ""})
    fault("has no merges beside it", "alone", **{"vocab.json": pieces})
    fault("does not hold the merges of", "foreign", **{"vocab.json": pieces, "merges.txt": "xyzzy plugh\n"})
    fault("does not hold the merges of", "torn", **{"vocab.json": pieces, "merges.txt": merges + "a b c\n"})
    fault("lacks 255 of the 256 bytes", "few", **{"vocab.json": '{"a": 0}', "merges.txt": ""})
    for i, content in enumerate(("no", "[]", '{"model": {}}', '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": null}')):
        fault("is not a byte-level BPE vocabulary", f"bad{i}", **{"tokenizer.json": content})
    fault("holds a WordPiece model", "word", **{"tokenizer.json": '{"model": {"type": "WordPiece", "vocab": {}}, "pre_tokenizer": {"type": "ByteLevel"}}'})
