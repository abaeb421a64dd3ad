import collections
import dataclasses
import itertools

import numpy as np
import ptmjax.tasks  # noqa: F401  registers
import pytest
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS

from ptmjax.data import adapters
from ptmjax.data.bytes import Bytes
from ptmjax.data.masking import Masking
from ptmjax.data.pairs import Pairs
from ptmjax.data.spans import Spans
from ptmjax.data.task import Task
from ptmjax.data.windows import Blocks, Sentences
from ptmjax.types import UserError


def test_another_text_and_vocabulary_reach_every_part():
    masking = Masking(EN_PD_4096, 64, cap=10)
    pairs = Task("a", "a.txt", EN_PD_4096, Sentences(60), Pairs(masking), Pairs(masking).readout())
    found = pairs.on("b", Bytes(), text="b.txt", holdout=9)
    assert (found.name, found.text, found.vocabulary, found.holdout, found.cut) == ("b", "b.txt", Bytes(), 9, Sentences(60))
    assert found.corruption == Pairs(dataclasses.replace(masking, vocabulary=Bytes())) and found.readout == found.corruption.readout()
    spans = Task("a", "a.txt", EN_PD_4096_SENTINELS, Blocks(60), Spans(EN_PD_4096_SENTINELS, 64)).on("b", Bytes(100), text="b.txt")
    assert spans.corruption == Spans(Bytes(100), 64) and spans.readout is None


def test_a_corruption_that_hides_its_vocabulary_is_refused():
    class Hidden:
        features = ("tokens",)

        def __init__(self):
            self.vocabulary = EN_PD_4096

    with pytest.raises(UserError, match="holds a vocabulary and is no dataclass"):
        Task("a", "a.txt", EN_PD_4096, Blocks(60), Hidden()).on("b", Bytes(), text="b.txt")


@pytest.mark.parametrize("task", ["en_pd_nsp_128", "en_pd_mlm_512", "en_pd_rtd_64", "en_pd_spans_512"])
def test_shapes_are_known_without_the_text(task, tmp_path, monkeypatch):
    """Those of the real text; with none of it there to read."""
    real = adapters.read(task)
    shapes = lambda records, found: {key: (x.shape, x.dtype) for key, x in found.corruption(records[0], np.random.default_rng(0), records).items()}
    made_up = dataclasses.replace(real, text=str(tmp_path / "none.txt")).made_up()
    few = list(itertools.islice(real.cut(itertools.islice(real.source.documents(collections.Counter()), 40), real.vocabulary), 8))
    assert len(made_up) == 8 and shapes(made_up, real) == shapes(few, real)


def test_a_cut_that_makes_nothing_of_it_is_told():
    none = Task("a", "a.txt", EN_PD_4096, Blocks(10**7, minimum=10**7), Masking(EN_PD_4096, 64, cap=10))
    with pytest.raises(UserError, match="task a: its cut makes no record of 64 documents"):
        none.made_up()
