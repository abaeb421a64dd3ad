"""What a stage takes."""
import types
from functools import partial as part
from pathlib import Path

import numpy as np
import pytest

from ptmjax.cli import folder
from ptmjax.cli.experiment import Data, Stage
from ptmjax.data.masking import Masking
from ptmjax.data.task import Task
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.windows import Blocks
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm
from ptmjax.training.build import Build
from ptmjax.types import UserError

V = SentencePiece(str(Path(__file__).parents[2] / "tasks/shipped/en_pd_4096.model"))


def stage(**more):
    return Stage("static", Encoding([Mlm(5)]), steps=1, batch=8, **more)


def test_numbers_are_checked():
    for name in ("steps", "batch", "micro", "heldout", "dupe_factor"):
        with pytest.raises(UserError, match=f"{name} is 0"):
            Stage(**{**dict(task="t", objective=Encoding([Mlm(5)]), steps=1, batch=8), name: 0})
    assert stage().dupe_factor is None and stage(dupe_factor=1).dupe_factor == 1


def test_what_a_stage_is_trained_on_is_told_by_what_comes_out(tmp_path, monkeypatch):
    """A rate, a share or a seed changed under a run is seen; the same again is the same."""
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"Document {i} of the sea and the whale, and of more." for i in range(60)))

    def found(seed=3, **more):
        task = Task("static", str(text), V, Blocks(16, minimum=12), Masking(V, 18, **more), holdout=6)
        monkeypatch.setattr(Data, "task", task)
        return folder.described(Data(stage(), seed, tmp_path / "cache"))

    plain = found()
    assert found() == plain
    for more in (dict(rate=0.5), dict(mask=0.7), dict(random=0.2), dict(seed=4)):
        other = found(**more)
        assert other["examples"] != plain["examples"] and {**other, "examples": 0} == {**plain, "examples": 0}


def words(feature="tokens", size=V.size):
    return part(Embedder, {"words": part(Table, feature, size, 8)}, 8)


@pytest.mark.parametrize("embedder, heads, ties, name", [
    (words(size=4000), {}, {}, "model/embedder/parts/words/table"),
    (words(), {"lm": part(VocabularyHead, 4000, 8, act=None, bias=False)}, {}, "model/heads/lm/table"),
    (words(size=4000), {"lm": part(VocabularyHead, 4000, 8)}, {"model/heads/lm/table": "model/embedder/parts/words/table"}, "model/.*"),
])  # fmt: skip
def test_every_parameter_over_a_vocabulary_holds_that_of_the_task(monkeypatch, embedder, heads, ties, name):
    """Whatever the parts are called: an id beyond is read as the last row, or scored as padding."""
    monkeypatch.setattr(Data, "task", types.SimpleNamespace(name="static", vocabulary=V))
    data, build = Data(stage(), 0, Path()), Build({"model": part(Network, embedder, heads=heads)}, ties)
    with pytest.raises(UserError, match=f"^{name} is for 4000 ids, the vocabulary of static has 4096: raise its size$"):
        data.check_vocabulary(build)
    enough = {"lm": part(VocabularyHead, 5000, 8, act=None)}
    data.check_vocabulary(Build({"model": part(Network, words(), heads=enough)}))


def test_dupe_factor_is_of_training_alone(tmp_path, monkeypatch):
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"Document {i} of the sea and the whale, and of more." for i in range(60)))
    task = Task("static", str(text), V, Blocks(16, minimum=12), Masking(V, 18, rate=0.5), holdout=6)
    monkeypatch.setattr(Data, "task", task)
    static, fresh = (Data(stage(dupe_factor=n), 3, tmp_path / "cache") for n in (2, None))
    n = len(static.training)
    assert static.heldout_source.dupe_factor is None and static.source.dupe_factor == 2

    def epoch(data, e):
        made = data.source.examples(e * n + np.arange(n))
        return made["weights"][np.argsort(made["index"])]

    assert (epoch(static, 0) == epoch(static, 2)).all() and (epoch(static, 1) == epoch(static, 3)).all()
    assert (epoch(static, 0) != epoch(static, 1)).any(1).mean() > 0.9
    assert (epoch(fresh, 1) == epoch(static, 1)).all() and (epoch(fresh, 0) != epoch(fresh, 2)).any(1).mean() > 0.9
