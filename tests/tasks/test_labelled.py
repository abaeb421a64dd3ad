"""Labelled texts: classes by the text itself, and no document on both sides."""
import collections

import numpy as np
import pytest
from ptmjax.tasks import labelled
from ptmjax.tasks.corpora import EN_PD_4096

from ptmjax.data import text
from ptmjax.types import UserError

COUNTS = {"novel": (135, 4), "law": (187, 2), "history": (249, 5), "poetry": (238, 4), "address": (72, 1)}  # documents, of them tested


def test_the_shipped_parts():
    found = labelled.read("en_pd_parts_16")
    documents = list(found.documents())
    every, tested = (collections.Counter(found.classes[d.label] for d in of) for of in (documents, [d for d in documents if d.split == "test"]))
    assert {name: (every[name], tested[name]) for name in found.classes} == COUNTS
    assert all((d.split == "test") == (text.split_of(d.text, 50) == "validation") for d in documents)
    split = collections.defaultdict(set)
    for d in documents:
        split[d.text].add(d.split)
    assert all(len(splits) == 1 for splits in split.values())
    says = {"novel": "whale", "law": "moses", "history": "david", "poetry": "selah", "address": "congress"}
    for name, word in says.items():
        share = collections.Counter()
        for d in documents:
            share[found.classes[d.label]] += d.text.lower().count(word)
        assert share.most_common(1)[0][0] == name


def laid(tmp_path, **more):
    words = "the sea and the whale went on and on and on until the night had come to the deep".split()
    documents = [f"{kind} {i} " + " ".join(words[(i + j) % len(words)] for j in range(40)) for kind in ("Alpha", "Beta", "Gamma") for i in range(60)]
    (tmp_path / "t.txt").write_text("\n\n".join(documents))
    parts = (("Alpha 0", "a"), ("Beta 0", None), ("Gamma 0", "c"))
    return labelled.Labelled(**{"text": str(tmp_path / "t.txt"), "parts": parts, "length": 8, "holdout": 5} | more)


def test_blocks(tmp_path):
    found = laid(tmp_path)
    assert found.classes == ["a", "c"] and {d.label for d in found.documents()} == {0, 1} and not any(d.text.startswith("Beta") for d in found.documents())
    rows = found.rows(EN_PD_4096)
    on = [set(r.documents) for r in rows.values()]
    assert not (on[0] & on[1] or on[1] & on[2] or on[0] & on[2]) and rows.keys() == {"train", "validation", "test"}
    for r in rows.values():
        assert r.tokens.shape == (len(r.labels), 8) and r.tokens.dtype == np.int32 and not np.isin(r.tokens, [EN_PD_4096.pad, EN_PD_4096.cls]).any()
    less = found.rows(EN_PD_4096, 8)
    assert np.bincount(less["train"].labels).tolist() == [8, 8] and np.bincount(less["validation"].labels).tolist() == [2, 2]
    assert np.array_equal(less["test"].tokens, rows["test"].tokens)
    again = laid(tmp_path).rows(EN_PD_4096, 8)
    assert all(np.array_equal(a, b) for split in less for a, b in zip(less[split], again[split]))


def test_faults(tmp_path):
    with pytest.raises(UserError, match="no document that begins with 'Delta'"):
        list(laid(tmp_path, parts=(("Alpha 0", "a"), ("Delta", "d"))).documents())
    with pytest.raises(UserError, match="the (train|validation|test) documents of .* give no block of 'a'"):
        laid(tmp_path, length=4000).rows(EN_PD_4096)
    with pytest.raises(UserError, match="--labels is 'none'; it may be one of 'en_pd_parts_16'"):
        labelled.read("none")
    with pytest.raises(ValueError, match="is taken"):
        labelled.register("en_pd_parts_16", laid(tmp_path))
