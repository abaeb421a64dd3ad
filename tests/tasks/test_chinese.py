"""The shipped Chinese text, what was made of it, and the tasks on it."""
import collections
import json
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
from ptmjax.tasks import chinese, tables
from ptmjax.tasks.corpora import ZH_DIALOGUE, ZH_PD_4096, ZH_PD_SIMILAR, ZH_PD_SMALL, ZH_PD_UNITS, ZH_SPACED, ZH_TAGGED

from ptmjax.data import registry, text
from ptmjax.data.order import counter
from ptmjax.data.trainers import train_characters

POEMS = [json.loads(line) for line in lzma.open(ZH_PD_SMALL, "rt", encoding="utf-8")]
TRAIN = [line for poem in POEMS if text.split_of(poem["text"], 50) == "train" for line in poem["text"].split("\n")]
NAMES = ["mlm", "wwm", "mac", "ernie", "ernie_basic", "ernie_phrase", "ernie_entity", "ernie_released"]
OWN = {"zh_jieba_wwm": ZH_PD_SMALL, "zh_jieba_ernie": ZH_PD_SMALL, "zh_spaced_wwm": ZH_SPACED, "zh_tagged_ernie": ZH_TAGGED, "zh_dialogue": ZH_DIALOGUE}


def records(task, documents):
    return list(task.cut(documents, task.vocabulary))


def rows(task, found, n):
    """The corruption of n records, each as often as it takes."""
    return task.corruption.rows([found[i % len(found)] for i in range(n)], [counter(0, task.name, i, 0) for i in range(n)], found)


def test_the_shipped_poems():
    assert Path(ZH_PD_SMALL).stat().st_size <= 1_500_000
    assert collections.Counter(poem["genre"] for poem in POEMS) == dict(shi=4600, ci=4600, qu=4600)
    assert all(poem.keys() == {"genre", "title", "author", "text"} and poem["text"] for poem in POEMS)
    assert len({poem["text"] for poem in POEMS}) == len(POEMS)
    held = collections.Counter(poem["genre"] for poem in POEMS if text.split_of(poem["text"], 50) == "validation")
    assert min(held.values()) > 60


@pytest.mark.slow
def test_the_vocabulary_is_the_trainers(tmp_path):
    train_characters(TRAIN, str(tmp_path / "vocab.txt"), 4096)
    assert (tmp_path / "vocab.txt").read_bytes() == Path(ZH_PD_4096.path).read_bytes()


def test_the_vocabulary_covers_the_text():
    assert ZH_PD_4096.size == 4096
    assert (ZH_PD_4096.pad, ZH_PD_4096.unk, ZH_PD_4096.cls, ZH_PD_4096.sep, ZH_PD_4096.mask) == (0, 1, 2, 3, 4)
    ids = np.concatenate([ZH_PD_4096.encode(poem["text"]) for poem in POEMS[::50]])
    assert (ids == ZH_PD_4096.unk).mean() < 0.01


@pytest.mark.slow
def test_the_tables_are_those_of_the_recipe(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TRAIN), encoding="utf-8")
    tables.main(*(str(tmp_path / name) for name in ("text.txt", "words.tsv", "similar.tsv")))
    made, shipped = (path.read_text(encoding="utf-8") for path in (tmp_path / "words.tsv", Path(ZH_PD_UNITS)))
    assert shipped.startswith(made) and {line.split("\t")[1] for line in shipped[len(made):].splitlines()} == {"place", "person"}
    pairs = lambda path: {(word, other) for line in path.read_text(encoding="utf-8").splitlines() for word, tab, others in [line.partition("\t")]
                          for other in others.split()}
    ours, theirs = pairs(tmp_path / "similar.tsv"), pairs(Path(ZH_PD_SIMILAR))
    assert len(ours & theirs) >= 0.98 * len(theirs)  # near ties may turn on another machine


def test_tables_of_a_tiny_text(tmp_path):
    """In which 春 and 秋 stand in the same places, and 东风 is said too often for chance."""
    lines = [f"{season}{thing}{a}{b}" for season in "春秋" for thing in ("山好", "水清", "花开") for a in "天地人" for b in "一二三四"] * 4
    lines += ["东风" + c for c in "甲乙丙丁戊己庚辛壬癸子丑寅"]
    found = dict(tables.collocations(lines))
    assert found["东风"] == "word" and "好天" not in found and all(len(word) == 2 or kind == "phrase" for word, kind in found.items())
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t{kind}\n" for word, kind in found.items()), encoding="utf-8")
    alike = tables.similar(lines, str(tmp_path / "words.tsv"))
    assert alike["春"][0] == "秋" and alike["秋"][0] == "春" and all(len(word) == len(o) for word, others in alike.items() for o in others)
    assert tables.similar(lines, str(tmp_path / "words.tsv")) == alike


def test_every_task_gives_rows():
    some = [poem["text"] for poem in POEMS[:40]]
    for name in NAMES:
        task = registry.read(f"zh_pd_{name}_64")
        found = records(task, some)
        out = rows(task, found, 200)
        assert out["tokens"].shape == (200, 64) and set(task.corruption.features) == out.keys()
        assert (out["weights"].sum(1) <= 10).all() and out["weights"].sum() > 200 * 5
        paired = name not in ("mlm", "wwm", "ernie")
        assert ("label" in out) == paired and (not paired or 0.2 < out["label"].mean() < 0.8)
        assert registry.read(f"zh_pd_{name}_128").corruption.features == task.corruption.features
        assert task.readout.rows(found[:1], [counter(0, "t", 0, 0)], found)["weights"].any()
    for name, path in OWN.items():
        for length in (64, 128, 512):
            assert registry.read(f"{name}_{length}").text == path


def test_macbert_shows_similar_words_and_no_mask():
    task = registry.read("zh_pd_mac_64")
    found = records(task, [poem["text"] for poem in POEMS[:300]])
    out = rows(task, found, 600)
    scored = out["weights"] > 0
    assert not (out["tokens"] == ZH_PD_4096.mask).any() and 0.05 < (out["tokens"] == out["targets"])[scored].mean() < 0.2
    similar = {tuple(line.split("\t")[::1]) for line in Path(ZH_PD_SIMILAR).read_text(encoding="utf-8").splitlines()}
    table = {word: set(others.split()) for word, others in similar}
    shown = [ZH_PD_4096.piece(b) in table[ZH_PD_4096.piece(a)] for a, b in zip(out["targets"][scored], out["tokens"][scored]) if ZH_PD_4096.piece(a) in table]
    assert np.mean(shown) > 0.6  # .8 of words, some of which are of two characters
    assert set(out["label"].tolist()) == {0, 1} and task.corruption.kinds == ("next", "swapped")
    hidden = task.readout.rows(found, [counter(0, "t", i, 0) for i in range(len(found))], found)
    w = hidden["weights"] > 0
    assert (hidden["tokens"] == hidden["targets"])[w].mean() < 0.005 and task.readout.bound(np.ones(4096))["bound"] == pytest.approx(np.log(4091))


def test_ernies_levels_are_whole_units():
    """Of every record the places scored together; a phrase is chosen whole or not at all, and Mixed has all three."""
    cut = registry.read("zh_pd_ernie_64").cut
    found = [r for r in cut([poem["text"] for poem in POEMS[:300]], ZH_PD_4096)]
    for level, column in (("phrase", "phrases"), ("entity", "entities")):
        masking = registry.read(f"zh_pd_ernie_{level}_64").corruption.masking
        out = masking.rows(found, [counter(0, "t", i, 0) for i in range(len(found))], found)
        several = 0
        for record, row in zip(found, out["weights"]):
            starts = [*np.flatnonzero(record[column]).tolist(), len(record["tokens"])]
            for a, b in zip(starts, starts[1:]):
                text_of = record["tokens"][a:b] != ZH_PD_4096.unk
                units = row[1 + a : 1 + b][text_of]
                assert units.all() or not units.any() or not record[column][0] and a == 0
                several += b - a > 1 and units.all()
        assert several > 20
    assert any((r["phrases"] != r["words"]).any() for r in found) and any((r["entities"] != r["words"]).any() for r in found)


def test_texts_that_show_how_ones_own_is_to_look():
    tagged = registry.read("zh_tagged_ernie_64")
    counts = collections.Counter()
    found = list(tagged.cut(text.documents(ZH_TAGGED, "line"), ZH_PD_4096, counts))
    assert len(found) == 24 and counts["untagged_words"] == 0 and all(set(tagged.cut.schema) == r.keys() for r in found)
    spaced = records(registry.read("zh_spaced_wwm_64"), text.documents(ZH_SPACED, "line"))
    assert all((a["tokens"] == b["tokens"]).all() and (a["words"] == b["words"]).all() for a, b in zip(found, spaced, strict=True))
    talk = records(registry.read("zh_dialogue_64"), text.documents(ZH_DIALOGUE))
    assert {tuple(r["roles"].tolist()) for r in talk} >= {(0, 1, 0), (0, 1, 1), (0, 0, 1)}  # QRQ, QRR, QQR
    assert chinese.LEVELS.keys() == {"basic", "phrase", "entity"} and re.search("zh_dialogue", chinese.__doc__)
