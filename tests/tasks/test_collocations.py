"""The measure by which n-grams hold together, and the task that masks them."""
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptmjax.tasks import collocations
from ptmjax.tasks.corpora import EN_PD_COLLOCATIONS, EN_PD_SMALL

from ptmjax.data import registry
from ptmjax.data.order import counter


def partings(gram):
    """All of a gram into two or more runs."""
    cuts = [[i for i in range(1, len(gram)) if bits >> i - 1 & 1] for bits in range(1, 2 ** (len(gram) - 1))]
    return [[gram[i:j] for i, j in zip([0, *at], [*at, len(gram)])] for at in cuts]


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_pmi_is_that_of_the_weakest_parting(words, random):
    gram = tuple(words)
    parts = {gram[i:j] for i in range(len(gram)) for j in range(i + 1, len(gram) + 1)}
    logs = {part: math.log(random.uniform(1e-6, 1)) for part in sorted(parts)}
    want = min(logs[gram] - sum(logs[part] for part in parting) for parting in partings(gram))
    assert collocations.pmi(gram, logs) == pytest.approx(want)


def test_what_holds_together_is_found_and_never_over_a_stop():
    lines = ["the United States, an old man. United\nStates of one, of two"] * 12 + ["the man of the one, the two, an old two"] * 12
    found = collocations.collocations(lines)
    assert {"united states", "old man", "an old", "of two"} <= set(found) and not any("one of" in words or "man united" in words for words in found)
    assert len(collocations.collocations(lines, size=3)) == 3 and collocations.collocations(lines[:4]) == []


@pytest.mark.slow
def test_the_shipped_list_is_that_of_the_shipped_text(tmp_path):
    collocations.main(EN_PD_SMALL, str(tmp_path / "list.txt"))
    assert (tmp_path / "list.txt").read_bytes() == Path(EN_PD_COLLOCATIONS).read_bytes()


def test_the_shipped_list():
    lines = Path(EN_PD_COLLOCATIONS).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == collocations.SIZE and lines == sorted(lines) and {len(x.split()) for x in lines} == {2, 3, 4, 5}
    assert {"united states", "sperm whale", "king of babylon"} <= set(lines) and "of the" not in lines


def test_collocations_are_masked_whole():
    task = registry.read("en_pd_pmi_64")
    documents = ["The President of the United States spoke to the Congress of the United States of the state of the union again and again. " * 2] * 3
    records = list(task.cut(documents, task.vocabulary))
    plain = list(registry.read("en_pd_wwm_64").cut(documents, task.vocabulary))
    assert all((a["tokens"] == b["tokens"]).all() for a, b in zip(records, plain, strict=True))
    united = task.vocabulary.encode("united states").tolist()
    rows = task.corruption.rows([records[0]] * 400, [counter(0, task.name, i, 0) for i in range(400)], records)
    at = [i for i in range(62) if rows["targets"][0, i : i + len(united)].tolist() == united]
    seen = np.array([[rows["weights"][:, i + k] for k in range(len(united))] for i in at])
    assert len(at) >= 2 and (seen == seen[:, :1]).all() and 0.03 < seen.mean() < 0.3
