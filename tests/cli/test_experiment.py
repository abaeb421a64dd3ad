"""What a stage takes."""
from pathlib import Path

import numpy as np
import pytest

from ptmjax.cli import folder
from ptmjax.cli.experiment import Data, Stage
from ptmjax.data.masking import Masking
from ptmjax.data.task import Task
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.windows import Blocks
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm
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
