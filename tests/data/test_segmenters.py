import collections
import pickle
import sys
import tempfile

import pytest

from ptmjax.data import segmenters
from ptmjax.data.segmenters import Gazetteer, Jieba, Spaced, runs
from ptmjax.types import UserError


@pytest.fixture
def dictionary(tmp_path):
    """A few words of jieba's format: its own dictionary takes a second to read."""
    (tmp_path / "dict.txt").write_text("我 9 r\n喜欢 9 v\n你 9 r\n语言 9 n\n模型 9 n\n", encoding="utf-8")
    return str(tmp_path / "dict.txt")


def forget():
    for held in (segmenters._jieba, segmenters._tagger, segmenters._tagged, segmenters._entries):
        held.cache_clear()


def test_jieba_gives_words_prints_nothing_and_writes_nothing(tmp_path, monkeypatch, capfd):
    forget()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert Jieba()("我喜欢自然语言处理，2021年。") == ["我", "喜欢", "自然语言", "处理", "，", "2021", "年", "。"]
    assert capfd.readouterr() == ("", "") and not list((tmp_path / "tmp").iterdir())


def test_jieba_by_a_dictionary_of_ones_own(dictionary):
    cut = Jieba(dictionary, hmm=False)
    assert cut("我喜欢你爱的语言模型") == ["我", "喜欢", "你", "爱", "的", "语言", "模型"]
    assert cut.tagged("我喜欢你") == [("我", "r"), ("喜欢", "v"), ("你", "r")] and cut.tagged("") == []
    assert pickle.loads(pickle.dumps(cut)) == cut


def test_a_segmenter_is_named_by_what_its_file_holds(dictionary, tmp_path):
    """So that a cache is found again when the file was moved, and not when it was changed."""
    (tmp_path / "other").mkdir()
    moved, changed = tmp_path / "other" / "d.txt", tmp_path / "changed.txt"
    held = open(dictionary, encoding="utf-8").read()
    moved.write_text(held, encoding="utf-8")
    changed.write_text(held + "爱 9 v\n", encoding="utf-8")
    for kind in (Jieba, Gazetteer):
        names = [repr(kind(str(path))) for path in (dictionary, moved, changed)]
        assert names[0] == names[1] != names[2] and "0x" not in names[0] and str(tmp_path) not in names[0]
    assert repr(Jieba()) == repr(Jieba()) != repr(Jieba(hmm=False)) and "0.42" in repr(Jieba())


def test_faults_of_jieba_are_one_line(tmp_path, monkeypatch):
    forget()
    with pytest.raises(UserError, match="dictionary .*none.txt cannot be read"):
        Jieba(str(tmp_path / "none.txt"))("我")
    (tmp_path / "odd.txt").write_text("我喜欢\n", encoding="utf-8")
    with pytest.raises(UserError, match="give lines of word frequency"):
        Jieba(str(tmp_path / "odd.txt"))("我")
    (tmp_path / "plain.txt").write_text("我 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="has no tags"):
        Jieba(str(tmp_path / "plain.txt")).tagged("我")
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match=r'needs the package jieba: pip install "ptmjax\[zh\]"'):
        Jieba()("我")
    assert "missing" in repr(Jieba())
    forget()


def test_a_gazetteer_takes_the_longest_match(tmp_path):
    (tmp_path / "words.tsv").write_text("长江\tplace\n长江大桥\tplace\r\n大桥\n江水\tword\n李白\tperson\n\n", encoding="utf-8")
    of = lambda *types, **more: Gazetteer(str(tmp_path / "words.tsv"), types, **more)
    assert of()("李白过长江大桥，长江水。") == ["李白", "过", "长江大桥", "，", "长江", "水", "。"]
    assert of("person")("李白过长江") == ["李白", "过", "长", "江"] and of("place")("长江大") == ["长江", "大"]
    assert of("place", between=of("word", "person"))("李白江水长江") == ["李白", "江水", "长江"]
    assert of()("iPhone 12在长江") == ["iPhone", " ", "12", "在", "长江"] and of()("") == []
    with pytest.raises(UserError, match=r"no word of types town \(it has person, place, word\): give lines"):
        of("town")("长江")
    with pytest.raises(UserError, match="word list .*none.tsv cannot be read"):
        Gazetteer(str(tmp_path / "none.tsv"))("长江")


def test_runs():
    assert runs("我用BERT3.5，Ａ１ 好😀") == ["我", "用", "BERT3", ".", "5", "，", "Ａ１", " ", "好", "😀"]


def test_spaces_between_words_go_where_no_letters_meet():
    text, marks = Spaced().read("使用  语言 模型 New York\n2021 年 ，好 ", collections.Counter())
    assert text == "使用语言模型New York\n2021年，好"
    assert [text[i] for i in marks["words"]] == list("使语模NY2年，") and list(marks) == list(Spaced.columns)
    assert Spaced().read("", collections.Counter()) == ("", {"words": []})


def test_a_list_of_phrases_finds_them_at_the_ends_of_words_in_any_case(tmp_path):
    (tmp_path / "words.txt").write_text("new york\nthe new\nyork city hall\n长江\ne", encoding="utf-8")
    lower = Gazetteer(str(tmp_path / "words.txt"), lower=True)
    assert lower("in New\nYork.") == ["in", " ", "New\nYork", "."]
    assert lower("In New York, a knew yorkshire; the  new YORK") == ["In", " ", "New York", ",", " ", "a", " ", "knew", " ", "yorkshire", ";", " ", "the", "  ", "new YORK"]
    assert lower("İstanbul's the New長江长江e") == ["İstanbul", "'", "s", " ", "the New", "長", "江", "长江", "e"]
    assert Gazetteer(str(tmp_path / "words.txt"))("New York new york") == ["New", " ", "York", " ", "new york"]
    assert repr(lower) != repr(Gazetteer(str(tmp_path / "words.txt")))
