"""A few lines in the style of the corpus of the People's Daily."""
import collections

import pytest

from ptmjax.data.segmenters import Jieba
from ptmjax.data.tagged import Entities, Phrases, Tagged, entities, joined, phrases
from ptmjax.types import UserError

LINE = "李/nr 小红/nr 在/p [北京/ns 大学/n]nt 研究/v 中国/ns 古代/t 文学/n 和/c 三/m 位/q 新/a 诗人/n 。/w"


def units(text, at):
    return [text[i:j].strip() for i, j in zip(at, [*at[1:], len(text)])]


def test_words_phrases_and_entities_of_a_tagged_line():
    counts = collections.Counter()
    text, marks = Tagged().read(LINE, counts)
    assert text == "李小红在北京大学研究中国古代文学和三位新诗人。" and counts["untagged_words"] == 0
    told = {name: units(text, at) for name, at in marks.items()}
    assert told == {
        "words": ["李", "小红", "在", "北京", "大学", "研究", "中国", "古代", "文学", "和", "三", "位", "新", "诗人", "。"],
        "phrases": ["李小红", "在", "北京大学", "研究", "中国古代文学", "和", "三位新诗人", "。"],
        "entities": ["李小红", "在", "北京大学", "研究", "中国", "古代", "文学", "和", "三", "位", "新", "诗人", "。"]}
    assert all("".join(found) == text for found in told.values()) and list(told) == list(Tagged.columns)


def test_lines_are_apart_and_what_has_no_tag_is_counted():
    counts = collections.Counter()
    text, marks = Tagged().read("19980101-01-001-001/m 工人/n\n诗人/n 1/2/m 好\n[/w 好/a ]/w", counts)
    assert text == "工人\n诗人1/2好\n[好]" and units(text, marks["phrases"]) == ["工人", "诗人", "1/2", "好", "[", "好", "]"]
    assert counts["untagged_words"] == 1


def test_a_phrase_ends_in_a_noun_and_has_at_most_so_many_words():
    told = lambda tags, most=4: joined([str(i) for i in range(len(tags.split()))], phrases(tags.split(), most))
    assert told("a n v n n d m q") == ["01", "2", "34", "5", "6", "7"]  # numbers without a noun behind are single words
    assert told("n n n n n n", 4) == ["01", "2345"] and told("n n n", 1) == ["0", "1", "2"] and told("m q v") == ["0", "1", "2"]
    with pytest.raises(UserError, match="most is 0"):
        Tagged(most=0)


def test_people_are_a_surname_and_a_name():
    told = lambda line: joined(*(lambda words, tags: (words, entities(words, tags)))(*zip(*(w.split("/") for w in line.split()))))
    assert told("江/nr 河/nr 李/nr 山/nr") == ["江河", "李山"] and told("司马/nr 光/nr 说/v") == ["司马光", "说"]
    assert told("牛郎/nr 织女/nr") == ["牛郎", "织女"] and told("李/nr 说/v 小红/nr") == ["李", "说", "小红"]


def test_of_a_tagger(tmp_path):
    (tmp_path / "d.txt").write_text("王 9 nr\n明 9 nr\n古代 9 t\n文学 9 n\n爱 9 v\n", encoding="utf-8")
    jieba = Jieba(str(tmp_path / "d.txt"), hmm=False)
    text = "王明爱古代文学\n爱"
    assert Phrases(jieba)(text) == ["王明", "爱", "古代文学", "\n", "爱"] and Entities(jieba)(text) == ["王明", "爱", "古代", "文学", "\n", "爱"]
    assert Phrases(jieba)("") == Entities(jieba)("") == []
