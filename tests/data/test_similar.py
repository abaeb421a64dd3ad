import pickle

import numpy as np
import pytest

from ptmjax.data.choices import Ngrams, Words
from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.data.similar import Similar
from ptmjax.types import UserError


@pytest.fixture
def table(tmp_path, words):
    """big ~ large huge, small ~ tiny (and two that cannot be used); dog has none."""
    vocabulary = words(["big", "large", "huge", "small", "tiny", "dog"])
    path = tmp_path / "similar.tsv"
    path.write_text("big\tlarge huge\nsmall\ttiny unheard small\n", encoding="utf-8")
    return Similar(str(path), vocabulary, rate=1.0)


def shown(table, text, n=600, **more):
    v = table.vocabulary
    masking = Masking(v, 5, rate=1.0, choice=Words(), each="word", similar=table, **{"mask": 0.0, "random": 0.0, **more})
    out = masking.rows([{"tokens": v.encode(text)}] * n, [counter(0, "t", i, 0) for i in range(n)], [])
    return [[v.piece(i) for i in row[1:-1]] for row in out["tokens"]], masking


def test_words_give_way_to_similar_ones(table):
    rows, masking = shown(table, "big small dog")
    found = {name: {row[i] for row in rows} for i, name in enumerate(["big", "small", "dog"])}
    assert found["big"] == {"large", "huge"} and found["small"] == {"tiny"}
    assert found["dog"] == {"big", "large", "huge", "small", "tiny", "dog"}  # none is like it: any piece
    share = np.mean([row[0] == "large" for row in rows])
    assert abs(share - 0.5) < 4 * (0.25 / len(rows)) ** 0.5
    assert len(pickle.dumps(masking)) < 1000 and "bound" not in masking.bound(np.ones(table.vocabulary.size))


def test_nothing_to_swap(table):
    rows, _ = shown(table, "unheard unheard", 3)  # unknown words alone
    assert all(row[:2] == ["[UNK]", "[UNK]"] for row in rows)


def test_rates_of_macbert(table):
    """80 % similar, 10 % random, 10 % kept, no [MASK] (Cui et al. 2020, section 3)."""
    eighty = Similar(table.path, table.vocabulary, 0.8)
    rows, _ = shown(eighty, "small", 8000, random=0.1)
    share = lambda word: np.mean([row[0] == word for row in rows])
    assert share("tiny") == pytest.approx(0.8 + 0.1 / 6, abs=4 * (0.16 / 8000) ** 0.5)
    assert share("small") == pytest.approx(0.1 + 0.1 / 6, abs=4 * (0.09 / 8000) ** 0.5)
    assert share("[MASK]") == 0
    read = Masking(table.vocabulary, 5, rate=1.0, choice=Ngrams((0.4, 0.3, 0.2, 0.1)), each="word", mask=0, random=0.1, similar=eighty).readout()
    assert read.similar is None and read.mask == 1


def test_a_word_of_two_pieces_takes_one_of_two(tmp_path, words):
    class Letters(words):
        """Every letter is a piece, those behind the first go on with the word."""

        def encode(self, text):
            return np.array([self.words.index(c if i == 0 else f"##{c}") for word in text.split() for i, c in enumerate(word)], np.int32)

        def starts(self, ids):
            return ~np.char.startswith(np.array(self.words)[ids], "##")

    v = Letters([*"abcd", *(f"##{c}" for c in "abcd")])
    path = tmp_path / "similar.tsv"
    path.write_text("ab\tc cd dc\nb\tcc a\n", encoding="utf-8")
    rows, _ = shown(Similar(str(path), v, 1.0), "ab b", 300)
    assert {tuple(row[:2]) for row in rows} == {("c", "##d"), ("d", "##c")} and {row[2] for row in rows} == {"a"}


@pytest.mark.parametrize("content, match", [
    (None, "cannot be read"), (b"\xff\xfe", "are not UTF-8"), (b"big large\n", "line 1: .*is not word<TAB>other other"),
    (b"big\tlarge\nsmall\t\n", "line 2"),
])
def test_files_that_cannot_be(tmp_path, words, content, match):
    path = tmp_path / "similar.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=match) as e:
        Similar(str(path), words(["big"])).words
    assert "\n" not in str(e.value)


def test_settings_that_cannot_be(table):
    v = table.vocabulary
    with pytest.raises(UserError, match="random 0.1 . similar 1.0 <= 1"):
        Masking(v, 8, mask=0.0, random=0.1, choice=Words(), each="word", similar=table)
    with pytest.raises(UserError, match="each is 'word', not 'piece'"):
        Masking(v, 8, mask=0.0, random=0.0, similar=table)
    with pytest.raises(UserError, match="rate 1.5"):
        Similar(table.path, v, 1.5)
