import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptmjax.tasks.corpora import EN_PD_BYTEBPE_4096

from ptmjax.data import windows
from ptmjax.data.bytes import Bytes
from ptmjax.data.choices import Tokens, Words
from ptmjax.data.loader import Source
from ptmjax.data.masking import Masking
from ptmjax.data.order import Sequential, counter
from ptmjax.data.pairs import Pairs
from ptmjax.data.records import build, records
from ptmjax.data.segmenters import Spaced
from ptmjax.data.tagged import Tagged
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks, FullSentences, Joined, Segmented, Sentences, Stream
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import UserError

TEXTS = ["a b c d e", "f g h i", "a b c d e", "j"]


def test_blocks(abc):
    counts = collections.Counter()
    made = list(Blocks(3, minimum=2)(TEXTS, abc, counts))
    assert [abc.decode(r["tokens"]) for r in made] == ["a b c", "d e", "f g h", "a b c", "d e"]
    assert counts == dict(documents=4, tokens=13, dropped=1, dropped_tokens=2)
    number = [r["document"].item() for r in made]
    assert number[0] == number[1] == number[3] != number[2]  # the same text is the same document
    assert all(r["tokens"].dtype == np.int32 and r["document"].dtype == np.int32 and r["document"].shape == (1,) for r in made)


def test_a_long_document_is_numbered_once(abc, monkeypatch):
    """Not once a block, which would take the square of its length."""
    seen = []
    monkeypatch.setattr(windows, "number_of", lambda text: seen.append(text) or np.zeros(1, np.int32))
    assert len(list(Blocks(3)([" ".join("a" * 999)], abc))) == 333 and len(seen) == 1


def test_every_block_is_a_row_between_cls_and_sep(abc):
    """Pitfall 6: no row begins amid a text, the short last one is as long as all others, a corpus below one row is one row."""
    rows = lambda texts: Masking(abc, 8).rows(records := list(Blocks(6)(texts, abc)), [counter(0, "t", i, 0) for i in range(len(records))], [])
    out, pad = rows(["a b c d e", "f g h i"]), [abc.pad]
    assert out["targets"].tolist() == [[abc.cls, 2, 3, 4, 5, 6, abc.sep] + pad, [abc.cls, 7, 8, 9, 10, abc.sep] + 2 * pad]
    assert out["segments"].tolist() == [[1] * 7 + [0], [1] * 6 + [0] * 2]
    assert rows(["a"])["targets"].tolist() == [[abc.cls, 2, abc.sep] + 5 * pad]
    assert [abc.decode(row[1:-1]) for row in rows(["a b c d e f g h i j k l"])["targets"]] == ["a b c d e f", "g h i j k l"]


def test_a_text_with_blank_lines_between_its_sentences_is_counted(abc):
    """Pitfall 8: each is a document then, and every next sentence another document's."""
    counts = collections.Counter()
    list(Sentences(6)(["a b c", "d", "a b. c d", "a b c d e f g h"], abc, counts))
    assert counts["lone_sentences"] == 2  # the last is cut into two


def test_blocks_keep_a_corpus_shorter_than_one_block(abc):
    assert [abc.decode(r["tokens"]) for r in Blocks(100)(["a b"], abc)] == ["a b"]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 9), st.data())
def test_blocks_lose_only_short_tails(sizes, length, data):
    vocabulary = type("Ids", (), {"spaces": False, "encode": staticmethod(lambda text: np.arange(len(text), dtype=np.int32))})
    minimum, counts = data.draw(st.integers(1, length)), collections.Counter()
    made = list(Blocks(length, minimum)(["x" * n for n in sizes], vocabulary, counts))
    assert sum(len(r["tokens"]) for r in made) == counts["tokens"] == sum(sizes) - counts["dropped_tokens"]
    assert all(minimum <= len(r["tokens"]) <= length for r in made)
    assert counts["dropped_tokens"] <= (minimum - 1) * len(sizes)


def test_stream_overlaps_by_one_and_separates_documents(abc):
    counts = collections.Counter()
    made = [r["tokens"] for r in Stream(4)(["a b c", "d", "e f g h i"], abc, counts)]
    assert [abc.decode(t) for t in made] == ["a b c [SEP] d", "d [SEP] e f g"]
    assert all(a[-1] == b[0] for a, b in zip(made, made[1:]))
    assert counts == dict(documents=3, tokens=12, dropped_tokens=3)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 9))
def test_stream_is_the_text(sizes, length):
    vocabulary = type("Ids", (), {"encode": staticmethod(lambda text: np.arange(1, len(text) + 1, dtype=np.int32)), "sep": 0})
    made = [r["tokens"] for r in Stream(length)(["x" * n for n in sizes], vocabulary)]
    whole = np.concatenate([np.r_[np.arange(1, n + 1), 0] for n in sizes])
    joined = np.concatenate([t[: -1] for t in made] + [made[-1][-1:]]) if made else whole[:0]
    assert joined.tolist() == whole[: len(joined)].tolist()
    assert len(whole) - len(joined) <= length


def test_sentences_are_packed_whole(abc):
    counts = collections.Counter()
    made = list(Sentences(6, minimum=2)(["a b c\nd e\nf g\nh\na b c d e f g h i\nj", "k\n\nk", "l"], abc, counts))
    assert [(abc.decode(r["tokens"]), r["starts"].tolist()) for r in made] == [
        ("a b c d e", [0, 3]), ("f g h", [0, 2]), ("a b c d e f", [0]), ("g h i j", [0, 3]), ("k k", [0, 1])]  # a sentence of 9 is cut into 6 and 3
    assert [r["document"].item() == made[0]["document"].item() for r in made] == [True] * 4 + [False]
    assert counts == dict(documents=3, tokens=20, dropped=1, dropped_tokens=1, lone_sentences=1)
    assert {key: x.dtype.name for key, x in made[0].items()} == Sentences.schema


@settings(derandomize=True, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), max_size=4), st.integers(1, 10), st.data())
def test_sentences_lose_only_short_blocks(documents, length, data):
    vocabulary = type("Ids", (), {"spaces": False, "encode": staticmethod(lambda text: np.arange(len(text), dtype=np.int32))})
    minimum, counts = data.draw(st.integers(1, length)), collections.Counter()
    made = list(Sentences(length, minimum)(["\n".join("x" * n for n in sizes) for sizes in documents], vocabulary, counts))
    assert sum(len(r["tokens"]) for r in made) == counts["tokens"] == sum(map(sum, documents)) - counts["dropped_tokens"]
    for r in made:
        assert minimum <= len(r["tokens"]) <= length and r["starts"][0] == 0 and (np.diff(r["starts"]) > 0).all()
        assert (r["tokens"][r["starts"]] % length == 0).all()  # a sentence's first token, or the first of a part of it
    if minimum == 1:
        whole = [n for sizes in documents for n in sizes]
        assert sum(len(r["starts"]) for r in made) == sum(-(-n // length) for n in whole)


def test_full_sentences_go_on_into_the_next_document(abc):
    """A sentence of 9 is cut into 6 and 3; where a block ends with a document no SEP is written, nor where a document is empty."""
    counts = collections.Counter()
    made = list(FullSentences(6, minimum=2)(["a b\nc", "d e", "", "f g h\ni j k", "l", "a b c d e f g h i", "j k l"], abc, counts))
    assert [(abc.decode(r["tokens"]), r["starts"].tolist()) for r in made] == [
        ("a b c [SEP] d e", [0, 2, 4]), ("f g h i j k", [0, 3]), ("a b c d e f", [0]), ("g h i", [0]), ("j k l", [0])]
    assert counts == dict(documents=7, tokens=24, dropped_tokens=1)  # "l", which a long sentence follows
    assert {key: x.dtype.name for key, x in made[0].items()} == FullSentences.schema
    with pytest.raises(UserError, match="no SEP, which stands between documents"):
        list(FullSentences(6)(["a"], type("None_", (), {"sep": None})))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), max_size=6), max_size=5), st.integers(1, 10), st.data())
def test_full_sentences_lose_only_short_blocks(documents, length, data):
    """Every token is 1 + its number in its sentence; a SEP, 0, stands where and only where a document begins amid a block."""
    vocabulary = type("Ids", (), {"spaces": False, "sep": 0, "encode": staticmethod(lambda text: np.arange(1, len(text) + 1, dtype=np.int32))})
    minimum, counts = data.draw(st.integers(1, length)), collections.Counter()
    made = list(FullSentences(length, minimum)(["\n".join("x" * n for n in sizes) for sizes in documents], vocabulary, counts))
    assert sum(len(r["tokens"]) for r in made) == counts["tokens"] and counts["documents"] == len(documents)
    for r in made:
        assert minimum <= len(r["tokens"]) <= length and r["starts"][0] == 0 and (np.diff(r["starts"]) > 0).all()
        assert r["tokens"][0] != 0 != r["tokens"][-1] and (r["tokens"][r["starts"]] % length == 1 % length).all()
        assert set(np.flatnonzero(r["tokens"] == 0) + 1) <= set(r["starts"].tolist())
    if minimum == 1:
        text = np.concatenate([np.zeros(0, np.int32), *(r["tokens"] for r in made)])
        assert text[text > 0].tolist() == [i for sizes in documents for n in sizes for i in range(1, n + 1)]
        for a, b in zip(made, made[1:]):  # full: what begins the next block did not fit
            first = np.diff([*b["starts"], len(b["tokens"])])[0] - int(0 in b["tokens"][: [*b["starts"], len(b["tokens"])][1]])
            assert len(a["tokens"]) + first + 1 > length


@pytest.mark.parametrize("cut", [Sentences, FullSentences])
def test_sentences_in_byte_level_pieces_are_the_text(cut):
    """Spaces between sentences are pieces of the second, a line end is one; CJK sentences have none. DOC-SENTENCES do not cross documents."""
    v, texts = EN_PD_BYTEBPE_4096, ["The whale. The sea!\nCall me. \tIshmael", "你好。再见。 Good"]
    made = [v.decode(r["tokens"]) for r in cut(200)(texts, v)]
    first, second = "The whale. The sea! Call me. Ishmael", "你好。再见。 Good"
    assert made == ([f"{first}</s>{second}"] if cut is FullSentences else [first, second])


def test_full_sentences_between_cls_and_sep():
    """Masking adds <s> and the last </s>, never chooses one of the three, and pads with pad, 1."""
    v = EN_PD_BYTEBPE_4096
    (record,) = FullSentences(30)(["The whale swam. He sank.", "A dog ran."], v)
    out = Masking(v, 32, rate=0.9).rows([record] * 50, [counter(0, "t", i, 0) for i in range(50)], [])
    n, sep = len(record["tokens"]), int(np.flatnonzero(record["tokens"] == v.sep).item())
    assert (out["targets"] == [v.cls, *record["tokens"], v.sep, *[v.pad] * (30 - n)]).all() and v.pad == 1
    assert (out["tokens"][:, [0, 1 + sep, 1 + n]] == [v.cls, v.sep, v.sep]).all() and (out["tokens"][:, n + 2 :] == 1).all()
    assert set(np.flatnonzero(out["weights"].any(0))) == set(range(1, n + 1)) - {1 + sep} and (out["segments"].sum(1) == n + 2).all()


def test_joined_crosses_documents_and_keeps_a_last_long_enough(abc):
    for minimum, last in ((1, ["i j"]), (2, ["i j"]), (3, [])):
        counts = collections.Counter()
        made = list(Joined(4, minimum)(["a b c", "d e f g h", "i j"], abc, counts))
        assert [abc.decode(r["tokens"]) for r in made] == ["a b c d", "e f g h", *last]
        assert counts == dict(documents=3, tokens=10 if last else 8, **({} if last else {"dropped_tokens": 2}))
    assert list(Joined(4)([], abc)) == []


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=6), st.integers(1, 9))
def test_joined_is_the_text(sizes, length):
    vocabulary = type("Ids", (), {"spaces": False, "encode": staticmethod(lambda text: np.arange(len(text), dtype=np.int32))})
    made = [r["tokens"] for r in Joined(length)(["x" * n for n in sizes], vocabulary)]
    assert all(len(t) == length for t in made[:-1])
    assert np.concatenate([np.zeros(0, np.int32), *made]).tolist() == [i for n in sizes for i in range(n)]


def test_settings_that_cannot_be():
    for cut in (Blocks, Sentences, FullSentences, Joined):
        with pytest.raises(UserError, match="shortest block, 5, must lie in 1..4"):
            cut(4, minimum=5)
    for cut in (Blocks, Stream, Sentences, FullSentences, Joined):
        with pytest.raises(UserError, match="a cut of 0 tokens"):
            cut(0)


# ------------------------------------------------------------------ words of a segmenter
@dataclasses.dataclass(frozen=True)
class Told:
    """A segmenter that is told its words."""

    text: str

    def __call__(self, text):
        return self.text.split("/")


CJK = "使用语言模型来预测我喜欢你一个词"
SAID = Told("使用/语言/模型/来/预测/我/喜欢/你")


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    path = tmp_path_factory.mktemp("chinese") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CJK, *(f"##{c}" for c in CJK), "un", "##aff", "."]), encoding="utf-8")
    return WordPiece(path)


def scored(masking, record, n=400):
    """Sets of places that are scored together: [rows, places of the text]."""
    out = masking.rows([record] * n, [counter(0, "t", i, 0) for i in range(n)], [])
    return out["weights"][:, 1 : len(record["tokens"]) + 1] > 0


def test_chinese_words_are_masked_whole(chinese):
    """Pitfall 22: ids are those of the characters; two characters of a word are scored together or not at all."""
    cut, masking = Segmented(Blocks(20), SAID), Masking(chinese, 22, rate=0.3, choice=Words())
    (record,), (plain,) = cut(["使用语言模型"], chinese), Blocks(20)(["使用语言模型"], chinese)
    assert (record["tokens"] == plain["tokens"]).all() and record["words"].tolist() == [1, 0, 1, 0, 1, 0]
    assert {key: x.dtype.name for key, x in record.items()} == cut.schema == {**Blocks.schema, "words": "uint8"}
    of = scored(masking, record)  # 2 of 8 places: one word
    assert (of[:, ::2] == of[:, 1::2]).all() and (of.sum(1) == 2).all() and (of.mean(0) > 0.2).all()
    apart = scored(masking, plain)
    assert (apart[:, ::2] != apart[:, 1::2]).any()  # by the vocabulary alone every character is a word
    each = dataclasses.replace(masking, choice=Tokens())
    assert (scored(each, record) == scored(each, plain)).all()
    assert not any(chinese.piece(i).startswith("##") for i in record["tokens"])


def test_words_that_disagree_with_the_text_fall_back_to_pieces(chinese):
    mark = lambda text, said: next(Segmented(Blocks(20), Told(said))([text], chinese))["words"].tolist()
    assert mark("我喜欢你", "我/喜欢/你") == [1, 1, 0, 1]
    (record,), (plain,) = Segmented(Blocks(20), Told("我/喜欢/你"))(["我喜欢你"], chinese), Blocks(20)(["我喜欢你"], chinese)
    of = scored(Masking(chinese, 6, rate=0.4, choice=Words()), record)
    assert (record["tokens"] == plain["tokens"]).all() and {tuple(row) for row in of.tolist()} == {(False, True, True, False), (True, False, False, True)}
    assert mark("我喜欢你", "") == mark("我喜欢你", "XX/欢喜/我你") == [1, 1, 1, 1]
    assert mark("我喜欢你", "XX/喜欢") == mark("我喜欢你", "喜欢") == [1, 1, 0, 1]
    assert mark("unaff 喜欢", "unaff/喜欢") == mark("unaff 喜欢", "unaff/ /喜欢") == [1, 0, 1, 0]
    assert mark("unaff喜欢", "un/aff喜/欢") == [1, 1, 0, 1]  # the segmenter decides, not ##


def test_a_block_or_a_sentence_that_parts_a_word_begins_with_one(chinese):
    blocks = list(Segmented(Blocks(3), SAID)(["使用语言模型"], chinese))
    assert [b["words"].tolist() for b in blocks] == [[1, 0, 1], [0, 1, 0]]
    of = scored(Masking(chinese, 5, rate=0.4, choice=Words()), blocks[1])
    assert {tuple(row) for row in of.tolist()} == {(True, False, False), (False, True, True)}
    (record,) = Segmented(Sentences(20), SAID)(["使用语言。模型"], chinese)
    assert record["words"].tolist() == [1, 0, 1, 0, 1, 1, 0] and record["starts"].tolist() == [0, 5]


def test_pairs_keep_the_words(chinese):
    text = "\n".join(["使用语言", "模型预测", "我喜欢你"] * 4)
    found = list(Segmented(Sentences(30), SAID)([text, text + "\n我"], chinese))
    pairs = Pairs(Masking(chinese, 16, rate=0.3, choice=Words()))
    out = pairs.rows([found[0]] * 200, [counter(0, "t", i, 0) for i in range(200)], found)
    other = pairs.rows([{key: x for key, x in found[0].items() if key != "words"}] * 200, [counter(0, "t", i, 0) for i in range(200)],
                       [{key: x for key, x in r.items() if key != "words"} for r in found])
    assert (out["targets"] == other["targets"]).all() and 0 < out["label"].sum() < 200
    whole = lambda o: [(a > 0) == (b > 0) for t, w in zip(o["targets"], o["weights"]) for x, y, a, b in zip(t, t[1:], w, w[1:])
                       if chinese.piece(x) + chinese.piece(y) in ("使用", "语言", "喜欢")]
    assert all(whole(out)) and len(whole(out)) > 400 and not all(whole(other))


def test_marked_records_go_through_the_cache(chinese, tmp_path):
    (tmp_path / "zh.txt").write_text("\n\n".join(["使用语言模型" + "我喜欢你" * (i % 9) for i in range(60)]), encoding="utf-8")
    masking = Masking(chinese, 12, choice=Words())
    task = Task("zh_words", str(tmp_path / "zh.txt"), chinese, Segmented(Blocks(10), SAID), masking, holdout=5)
    held = build(task, "train", str(tmp_path / "cache"), workers=1, progress=False)
    assert all((a["words"] == b["words"]).all() for a, b in zip(held, records(task, "train"))) and held.folder.name.startswith("zh_words-")
    assert build(task, "train", str(tmp_path / "cache")).folder == held.folder
    told = dataclasses.replace(task, cut=Segmented(Blocks(10), Told("使用语言")))
    assert build(told, "train", str(tmp_path / "cache"), progress=False).folder != held.folder
    assert Source(held, Sequential(len(held)), masking, 0, "t").examples(np.arange(9))["tokens"].shape == (9, 12)


def test_segmenters_that_cannot_be(chinese):
    for segmenter in (lambda text: [text], object()):
        with pytest.raises(UserError, match="another repr in every process.*frozen dataclass"):
            Segmented(Blocks(4), segmenter)
    with pytest.raises(UserError, match="Blocks or Sentences, not in Stream"):
        Segmented(Stream(4), SAID)
    with pytest.raises(UserError, match="use a WordPiece or SentencePiece vocabulary"):
        list(Segmented(Blocks(4), SAID)(["a"], Bytes()))


# ------------------------------------------------------------------ several columns, texts that are segmented, counts
def marks(record, name):
    return "".join("|" * bool(x) + c for c, x in zip("我喜欢你使用语言", record[name]))


def test_several_columns_are_marked_at_once(chinese):
    cut = Segmented(Blocks(20), {"words": Told("我/喜欢/你/使用/语言"), "phrases": Told("我/喜欢你/使用语言"), "entities": Told("我/喜欢/你/使用/语/言")})
    counts = collections.Counter()
    (record,) = cut(["我喜欢你使用语言"], chinese, counts)
    assert [marks(record, name) for name in ("words", "phrases", "entities")] == ["|我|喜欢|你|使用|语言", "|我|喜欢你|使用语言", "|我|喜欢|你|使用|语|言"]
    assert {key: x.dtype.name for key, x in record.items()} == cut.schema and list(cut.schema)[2:] == ["words", "phrases", "entities"]
    assert (record["tokens"] == next(Blocks(20)(["我喜欢你使用语言"], chinese))["tokens"]).all()
    assert counts == dict(documents=1, tokens=8, dropped=0, dropped_tokens=0, words=5, phrases=3, entities=6, unmatched_words=0, unmatched_phrases=0,
                          unmatched_entities=0)
    phrase = scored(Masking(chinese, 22, rate=0.4, choice=Words("phrases")), record)  # 4 of 10 places: one unit of four, or 1 + 3
    assert {tuple(np.flatnonzero(row)) for row in phrase.tolist()} == {(4, 5, 6, 7), (0, 1, 2, 3)}


def test_a_text_that_says_where_its_words_are(chinese):
    """The vocabulary sees no tag and no space; ids are those of the plain text, in blocks and in sentences."""
    text = "我喜欢你。使用语言模型unaff unaff"
    for written, document in ((Spaced(), "我 喜欢 你 。 使用 语言 模型 unaff unaff"), (Tagged(), "我/r 喜欢/v 你/r 。/w 使用/v 语言/n 模型/n unaff/nz unaff/nz")):
        for cut, lasting in ((Blocks(20), 1), (Sentences(20), 2)):
            (record,), (plain,) = Segmented(cut, written=written)([document], chinese), cut([text], chinese)
            assert all((record[name] == x).all() for name, x in plain.items())
            assert record["words"].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
            assert len(record.get("starts", [0])) == lasting and {key: x.dtype.name for key, x in record.items()} == Segmented(cut, written=written).schema
            if written == Tagged():  # 语言模型 is a phrase with the names behind it
                assert record["phrases"].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    both = Segmented(Blocks(20), {"entities": Told("我/喜欢你/。")}, Spaced())
    (record,) = both(["我 喜欢 你 。"], chinese)
    assert both.columns == ("words", "entities") and record["words"].tolist() == [1, 1, 0, 1, 1] and record["entities"].tolist() == [1, 1, 0, 0, 1]


def test_words_that_no_begin_is_found_for_are_counted(chinese):
    """Pitfall 22: the text lacks the word, or a piece reaches over its begin."""
    def counted(text, said):
        counts = collections.Counter()
        (record,) = Segmented(Blocks(20), Told(said))([text], chinese, counts)
        return counts["words"], counts["unmatched_words"], record["words"].tolist()

    assert counted("我喜欢你", "我/喜欢/你") == (3, 0, [1, 1, 0, 1])
    assert counted("我喜欢你", "我/爱/你") == (3, 1, [1, 1, 1, 1])
    assert counted("我喜欢你", "") == (0, 0, [1, 1, 1, 1])
    assert counted("xyz 我喜欢", "x/yz/ /我/喜欢") == (4, 1, [1, 1, 1, 0])  # xyz is one unknown piece
    assert counted("unaff", "una/ff") == (2, 1, [1, 0])


@dataclasses.dataclass(frozen=True)
class Anyhow:
    """A segmenter that cuts anywhere, and knows words that are in no text."""

    seed: int

    def __call__(self, text):
        rng = np.random.default_rng([self.seed, len(text)])
        ends = [0, *np.flatnonzero(rng.random(len(text)) < 0.4).tolist(), len(text)]
        return [text[a:b] if rng.random() < 0.9 else "不在" for a, b in zip(ends, ends[1:])]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([*"我喜欢你用词。，", "BERT", "12.5", "１２", "Ａ", "😀", " ", "\n", "é", "unaff", "\u200b", "囧", "!"]), max_size=14), st.integers(0, 99))
def test_the_ids_do_not_depend_on_the_segmenter(chinese, parts, seed):
    text = "".join(parts)
    for cut in (Blocks(5), Sentences(5)):
        plain, counts = list(cut([text], chinese)), collections.Counter()
        made = list(Segmented(cut, {"words": Anyhow(seed), "phrases": Anyhow(seed + 1)})([text], chinese, counts))
        assert len(made) == len(plain)
        assert all((a[name] == x).all() and set(a["words"].tolist()) <= {0, 1} for a, b in zip(made, plain) for name, x in b.items())
        assert not any(chinese.piece(i).startswith("##") for r in made for i in r["tokens"] if chinese.plain(i) in CJK)
        assert 0 <= counts["unmatched_words"] <= counts["words"]


def test_columns_that_cannot_be(chinese):
    for given in ({}, {"words": SAID, "document": SAID}, None):
        with pytest.raises(UserError, match="are to be marked: give one or more"):
            Segmented(Blocks(4), given)
    with pytest.raises(UserError, match="columns words, words are to be marked"):
        Segmented(Blocks(4), SAID, Spaced())
    with pytest.raises(UserError, match="Blocks or Sentences, not in Segmented"):
        Segmented(Segmented(Blocks(4), SAID), {"phrases": SAID})
    with pytest.raises(UserError, match="another repr in every process"):
        Segmented(Blocks(4), {"words": SAID, "phrases": lambda text: [text]})
