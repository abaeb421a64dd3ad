import dataclasses

import pytest
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS

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
