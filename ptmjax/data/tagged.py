"""Phrases and entities from words with parts of speech: those of a text that is tagged, or of a tagger (jieba's).

The tags are those of the corpus of the People's Daily (PKU), which jieba has too: n... nouns and names, v verbs, a adjectives, m numbers,
q measure words, f places in relation, w or x marks, ...
"""
import collections
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptmjax.data.segmenters import Jieba, plain
from ptmjax.types import at_least

NOUNS = ("n", "vn", "an", "j", "l", "i", "s", "t")  # heads of a phrase: tags that begin with n, and these
BEFORE = ("a", "b", "m", "q", "f")  # what may stand before one inside it
NAMES = ("nr", "ns", "nt", "nz")  # people, places, organisations, others: tags that begin so
SURNAMES = frozenset("欧阳 司马 诸葛 上官 司徒 东方 独孤 南宫 夏侯 皇甫 尉迟 公孙 慕容 令狐 长孙 宇文 端木 闻人 澹台 公冶".split())


def noun(tag: str) -> bool:
    return tag.startswith("n") or tag in NOUNS


def phrases(tags: Sequence[str], most: int) -> list[bool]:
    """Whether a phrase begins at each word. A phrase is a run of nouns and of what stands before them (adjectives, numbers, measure
    words, places), up to its last noun; of a run of more than `most` words the last `most` are one, then those before."""
    first, end = [True] * len(tags), len(tags)
    while end:
        if not noun(tags[end - 1]):
            end -= 1
            continue
        begin = end - 1
        while begin and end - begin < most and (noun(tags[begin - 1]) or tags[begin - 1] in BEFORE):
            begin -= 1
        first[begin + 1 : end] = [False] * (end - begin - 1)
        end = begin
    return first


def entities(words: Sequence[str], tags: Sequence[str], spans: Iterable[tuple[int, int]] = ()) -> list[bool]:
    """Whether an entity, or a word that is none, begins at each word. One of several words is a surname (of one character, or one of
    SURNAMES) with the nr behind it, and every span, begin and end in words, that the text itself brackets."""
    first = [True] * len(words)
    for i in range(1, len(words)):
        surname = len(words[i - 1]) == 1 or words[i - 1] in SURNAMES
        first[i] = not (tags[i].startswith("nr") and tags[i - 1].startswith("nr") and surname and first[i - 1])
    for begin, end in spans:
        first[begin + 1 : end] = [False] * (end - begin - 1)
    return first


def joined(words: Sequence[str], first: Sequence[bool]) -> list[str]:
    """The units: words that follow each other, one begun by each that is `first`."""
    found = []
    for word, begins in zip(words, first):
        if begins or not found:
            found.append(word)
        else:
            found[-1] += word
    return found


@dataclass(frozen=True)
class Phrases:
    """Phrases by phrases() and single words between them. tagger: has tagged(text) -> (word, tag) pairs that cover the text."""

    tagger: Jieba
    most: int = 4

    def __call__(self, text: str) -> list[str]:
        words, tags = zip(*self.tagger.tagged(text)) if text else ((), ())
        return joined(words, phrases(tags, self.most))


@dataclass(frozen=True)
class Entities:
    """Entities by entities() and single words between them. tagger: as of Phrases."""

    tagger: Jieba

    def __call__(self, text: str) -> list[str]:
        words, tags = zip(*self.tagger.tagged(text)) if text else ((), ())
        return joined(words, entities(words, tags))


_NUMBER = re.compile(r"\d{8}-\d\d-\d{3}-\d{3}/m")  # of a paragraph of the People's Daily


@dataclass(frozen=True)
class Tagged:
    """How a text is written whose words are tagged, as in the corpus of the People's Daily: `word/tag word/tag`, and `[word/tag
    word/tag]nt` for an entity of several words. Marks words, phrases (of at most `most` words) and entities; a word without a tag is of no
    kind, and is counted (untagged_words)."""

    most: int = 4
    columns = ("words", "phrases", "entities")

    def __post_init__(self):
        at_least(1, most=self.most)

    def read(self, document: str, counts: collections.Counter) -> tuple[str, dict[str, list[int]]]:
        lines = [_tags(line) for line in document.split("\n")]
        text, at = plain([words for words, _, _ in lines])
        counts["untagged_words"] += sum(tag == "" for _, tags, _ in lines for tag in tags)
        starts = lambda first: [place for place, begins in zip(at, first, strict=True) if begins]
        return text, {"words": at, "phrases": starts([x for _, tags, _ in lines for x in phrases(tags, self.most)]),
                      "entities": starts([x for line in lines for x in entities(*line)])}


def _tags(line: str) -> tuple[list[str], list[str], list[tuple[int, int]]]:
    """(words, tags, those bracketed as an entity, from word to word) of a line."""
    words, tags, spans, opened = [], [], [], None
    for token in line.split():
        if _NUMBER.fullmatch(token):
            continue
        word, slash, tag = token.rpartition("/")
        if not (slash and word):
            word, tag = token, ""
        if len(word) > 1 and word[0] == "[" and tag:
            word, opened = word[1:], len(words)
        words.append(word)
        tag, closed, kind = tag.partition("]")
        tags.append(tag)
        if closed and opened is not None:
            if kind.startswith(NAMES):
                spans.append((opened, len(words)))
            opened = None
    return words, tags, spans
