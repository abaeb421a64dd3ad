import collections
import lzma
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from ptmjax.tasks.corpora import EN_PD_BYTEBPE_4096, EN_PD_SMALL

from ptmjax.cli import own
from ptmjax.data import sources
from ptmjax.data.bytebpe import ByteBPE
from ptmjax.data.trainers import ALPHABET, KINDS, LONGEST, sample, train_bytebpe, train_characters, train_sentencepiece, train_wordpiece
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import UserError

ENGLISH = [line for line in lzma.open(EN_PD_SMALL, "rt").read(600_000).split("\n") if line]


def opened(path):
    return {".model": SentencePiece, ".txt": WordPiece, ".json": ByteBPE}[path.suffix](str(path))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "characters"])  # of which the shipped file is another process'
def test_three_processes_train_the_same_bytes(tmp_path, kind):
    """huggingface/tokenizers#1794: its own alphabet, out of a hash table, gives another vocabulary in every process."""
    name, _ = KINDS[kind]
    (tmp_path / "text").write_text("\n".join(ENGLISH[:1500]))
    code = (f"from ptmjax.data.trainers import KINDS; import sys; lines = open({str(tmp_path / 'text')!r}).read().split('\\n'); "
            f"KINDS[{kind!r}][1](lines, sys.argv[1], 900, True)")
    for seed in ("1", "2", "3"):
        (tmp_path / seed).mkdir()
        env = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(sys.path), RAYON_NUM_THREADS=seed)
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed / name)], check=True, env=env)
    one, *others = ((tmp_path / seed / name).read_bytes() for seed in ("1", "2", "3"))
    assert others == [one, one] and len(one) > 1000
    v = opened(tmp_path / "1" / name)
    symbols = (1, 3, 0, 2, 899) if kind == "bytebpe" else (0, 1, 2, 3, 4)  # RoBERTa's, or BERT's
    assert v.size == 900 and v.special == set(symbols) and (v.pad, v.unk, v.cls, v.sep, v.mask) == symbols
    assert v.fingerprint == opened(tmp_path / "2" / name).fingerprint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lower", (True, False))
def test_case(tmp_path, kind, lower):
    name, train = KINDS[kind]
    train([*ENGLISH[:300], "ALE Jam"], str(tmp_path / name), 400, lower)
    v = WordPiece(str(tmp_path / name), lower) if name.endswith(".txt") else opened(tmp_path / name)
    assert (v.decode(v.encode("ALE")) == "ale") == lower and v.unk not in v.encode("ALE Jam")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_too_small_for_the_size_gives_what_it_has(tmp_path, kind):
    name, train = KINDS[kind]
    train(ENGLISH[:20], str(tmp_path / name), 99999, True)
    assert 50 < opened(tmp_path / name).size < 9999


def test_the_shipped_byte_level_vocabulary_is_what_training_gives(tmp_path):
    """As its notice says, from the training split of the shipped text."""
    source = own.Own(EN_PD_SMALL)
    train_bytebpe(sample(source.lines(sources.source(EN_PD_SMALL))), str(tmp_path / "new.json"), 4096, False)
    assert (tmp_path / "new.json").read_bytes() == Path(EN_PD_BYTEBPE_4096.path).read_bytes()


def test_pieces_of_bytes_merge_the_commonest_pair_and_of_equals_the_first(tmp_path):
    """aab thrice: pairs aa and ab, thrice each; aa is first. What stands once is not merged."""
    train_bytebpe(["aab aab", "aab xyz"], str(tmp_path / "v.json"), 9999, False)
    v = ByteBPE(str(tmp_path / "v.json"))
    assert [v.piece(i) for i in range(260, v.size)] == ["aa", "aab", "<mask>"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_below_the_alphabet_or_no_text_is_a_fault(tmp_path, kind):
    name, train = KINDS[kind]
    for lines, size in ((ENGLISH, 5 if kind == "characters" else 7), ([], 900), (["  "], 900)):
        with pytest.raises(UserError):
            train(lines, str(tmp_path / name), size, True)
    assert not (tmp_path / name).exists()


def test_long_lines_are_reported(tmp_path, caplog):
    assert train_sentencepiece([*ENGLISH[:27], "x" * (LONGEST + 1)], str(tmp_path / "m"), 90) == 1
    assert "left out 1 of 28 lines" in caplog.text
    with pytest.raises(UserError, match="of 1 lines with text 1 have more than"):
        train_sentencepiece(["x" * (LONGEST + 1)], str(tmp_path / "n"), 30)


def test_long_words_are_left_out(tmp_path):
    assert train_wordpiece([*ENGLISH[:27], f"{'x' * 101} {'x' * 101}"], str(tmp_path / "vocab.txt"), 90) == 2


def test_wordpiece_of_english_has_its_common_words(tmp_path):
    train_wordpiece(ENGLISH, str(tmp_path / "vocab.txt"), 4000)
    v = WordPiece(str(tmp_path / "vocab.txt"))
    words = [word for word, _ in collections.Counter(re.findall("[a-z]+", " ".join(ENGLISH).lower())).most_common(300)]
    assert [v.piece(i) for i in v.encode(" ".join(words))] == words and "##ing" in v._pieces
    ids = [i for line in ENGLISH for i in v.encode(line)]
    assert ids.count(v.unk) < 1e-4 * len(ids)
    theirs = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))  # as one would train it there
    theirs.normalizer, theirs.pre_tokenizer = tokenizers.normalizers.BertNormalizer(), tokenizers.pre_tokenizers.BertPreTokenizer()
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    theirs.train_from_iterator(ENGLISH, tokenizers.trainers.WordPieceTrainer(vocab_size=4000, min_frequency=2, special_tokens=symbols, show_progress=False))
    assert len(theirs.get_vocab().keys() & set(v._pieces)) > 3900  # but for ties, by which theirs differ by 45 from process to process


def test_alphabet_of_a_script_with_many_characters(tmp_path):
    rng = random.Random(0)
    chinese = ["".join(chr(0x4E00 + rng.randrange(3000)) for _ in range(40)) for _ in range(600)]
    train_wordpiece(chinese, str(tmp_path / "vocab.txt"), 9000)
    v = WordPiece(str(tmp_path / "vocab.txt"))
    ids = [i for line in chinese for i in v.encode(line)]
    assert v.size > ALPHABET + 5 and ids.count(v.unk) <= 5e-4 * len(ids) + 1
    assert not any(piece.startswith("##") for piece in v._pieces)  # each is a word


def test_a_sample_keeps_its_budget_and_order_and_does_not_depend_on_what_follows():
    lines = [f"line {i} " + "x" * (i % 70) for i in range(5000)]
    some = sample(lines, 20_000)
    assert sum(map(len, some)) <= 20_000 < 4 * sum(map(len, some)) and some == [line for line in lines if line in set(some)]
    assert sample(lines[:10], 20_000) == lines[:10] and sample(["", " ", "a"], 9) == ["a"] and sample(["x" * 99], 9) == ["x" * 99]
    assert set(sample(lines[::-1], 20_000)) == set(some)


def test_characters_by_how_often_they_occur(tmp_path):
    lines = ["我喜欢你，你喜欢我。", "我用 BERT 12", "ab a"] + ["x" * 101]
    assert train_characters(lines, str(tmp_path / "v.txt"), 99) == 1
    v = WordPiece(str(tmp_path / "v.txt"))
    assert [v.piece(i) for i in range(v.size)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "我", "a", "你", "喜", "欢", "##2", "##b", "##e", "##r", "##t",
                                                   "1", "b", "。", "用", "，"]
    assert [v.piece(i) for i in v.encode("用Bert喜欢我")] == ["用", "b", "##e", "##r", "##t", "喜", "欢", "我"]
    train_characters(lines, str(tmp_path / "small.txt"), 7)
    assert (tmp_path / "small.txt").read_text(encoding="utf-8").split("\n")[5:] == ["我", "a", ""]
