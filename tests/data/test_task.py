import collections
import dataclasses
import itertools

import numpy as np
import ptmjax.tasks  # noqa: F401  registers
import pytest
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_4096_SENTINELS

from ptmjax.data import registry
from ptmjax.data.bytes import Bytes
from ptmjax.data.masking import Masking
from ptmjax.data.pairs import Pairs
from ptmjax.data.spans import Spans
from ptmjax.data.task import Mixture, Task
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
    real = registry.read(task)
    shapes = lambda records, found: {key: (x.shape, x.dtype) for key, x in found.corruption(records[0], np.random.default_rng(0), records).items()}
    made_up = dataclasses.replace(real, text=str(tmp_path / "none.txt")).made_up()
    few = list(itertools.islice(real.cut(itertools.islice(real.source.documents(collections.Counter()), 40), real.vocabulary), 8))
    assert len(made_up) == 8 and shapes(made_up, real) == shapes(few, real)


def test_a_cut_that_makes_nothing_of_it_is_told():
    none = Task("a", "a.txt", EN_PD_4096, Blocks(10**7, minimum=10**7), Masking(EN_PD_4096, 64, cap=10))
    with pytest.raises(UserError, match="task a: its cut makes no record of 64 documents"):
        none.made_up()


# ------------------------------------------------------------------ mixtures
MASKING = Masking(EN_PD_4096, 64, cap=10)


def task(name, masking=MASKING):
    return Task(name, "a.txt", masking.vocabulary, Blocks(60), masking)


def test_shares_of_a_mixture():
    """Rates count by their proportions; those of a mixture inside are within it; an exponent looks at what a part holds in all."""
    a, b, c = map(task, "abc")
    inner = Mixture("inner", (b, c), exponent=0.7)
    assert Mixture("m", (a, b), rates=(3, 1)).shares([5, 5]) == (0.75, 0.25) and not Mixture("m", (a, b), rates=(3, 1)).exponents
    outer = Mixture("outer", (a, inner), rates=(1, 3))
    assert [t.name for t in outer.tasks] == ["a", "b", "c"] and outer.exponents and outer.vocabulary is EN_PD_4096
    shares = outer.shares([7, 90, 10])
    assert shares == pytest.approx((0.25, 0.75 * 9**0.7 / (1 + 9**0.7), 0.75 / (1 + 9**0.7)))
    assert Mixture("m", (a, inner), exponent=1.0).shares([900, 90, 10]) == pytest.approx((0.9, 0.1 * 9**0.7 / (1 + 9**0.7), 0.1 / (1 + 9**0.7)))
    assert a.tasks == (a,) and a.shares([3]) == (1.0,)


@pytest.mark.parametrize("parts, more, said", [
    ("aa", {"rates": (1, 1)}, "task 'a' stands in it twice"), ("", {"exponent": 1}, "has no tasks"),
    ("ab", {}, "give either rates, or an exponent"), ("ab", {"rates": (1, 1), "exponent": 0.5}, "give either rates, or an exponent"),
    ("ab", {"exponent": 1.5}, "an exponent of 1.5 is not in"), ("ab", {"rates": (1, 0)}, "leave out a task of rate 0"),
    ("ab", {"rates": (1,)}, r"rates \[1\] for 2 tasks"), ("ab", {"rates": (1, float("nan"))}, "above 0"),
])
def test_faults_of_a_mixture(parts, more, said):
    with pytest.raises(UserError, match=f"^mixture m.*{said}"):
        Mixture("m", tuple(map(task, parts)), **more)


def test_tasks_of_a_mixture_go_together():
    """Two that differ in keys or vocabulary are named."""
    typed = task("typed", Masking(EN_PD_4096, 64, cap=10, types=True))
    with pytest.raises(UserError, match="mixture m: 'a' gives tokens, targets, weights, segments, 'typed' tokens, .*types: mix tasks"):
        Mixture("m", (task("a"), typed), rates=(1, 1))
    other = Mixture("m", (task("a"), task("b", Masking(EN_PD_4096_SENTINELS, 64, cap=10))), rates=(1, 1))
    with pytest.raises(UserError, match="mixture m: the vocabulary of 'b' is not that of 'a'"):
        other.vocabulary
    with pytest.raises(UserError, match="'m' is a mixture of a, b, each of a text of its own"):
        Mixture("m", (task("a"), task("b")), exponent=1).on("own", Bytes(), text="b.txt")
    moved = Mixture("m", (task("a"), task("b")), exponent=1).at("copy.model")
    assert [t.vocabulary.path for t in moved.tasks] == ["copy.model"] * 2
