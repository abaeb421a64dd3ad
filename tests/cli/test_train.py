"""What train makes of parts that do not fit together."""
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from ptmjax.cli import part, train
from ptmjax.cli.main import main
from ptmjax.cli.session import fitting
from ptmjax.types import UserError


def test_a_part_that_is_missing_is_one_line():
    """None where a factory was to be, and the like."""
    with pytest.raises(UserError, match="do not fit together, at .*: AttributeError: 'NoneType' object") as caught, fitting():
        None.encode()
    assert "\n" not in str(caught.value)


def test_what_the_machine_lacks_is_no_misfit():
    with pytest.raises(MemoryError), fitting():
        raise MemoryError


def test_faults_of_reading_the_text_are_told_as_what_they_are(tmp_path, monkeypatch):
    def build(*about, **more):
        raise AttributeError("a worker's")

    monkeypatch.setattr(part, "build", build)
    with pytest.raises(AttributeError, match="a worker's"):
        main(["train", "--gin_file=bert_demo.gin", f"--workdir={tmp_path / 'run'}", f"--cache={tmp_path}"])


@pytest.mark.parametrize("told, said", [
    ([], "does not tell its vocabulary (in data.json): whether its model/table means the pieces of mine could not be checked"),
    ([{"task": "theirs"}], "could not be checked"), ([{"vocabulary": "ours"}], ""),
])
def test_another_runs_vocabulary_that_cannot_be_checked_is_told(tmp_path, monkeypatch, capsys, told, said):
    (tmp_path / "checkpoints").mkdir()
    if told:
        (tmp_path / "data.json").write_text(json.dumps(told))
    monkeypatch.setattr(train.partial, "initial", lambda *about: {"model/table": None})
    stage = SimpleNamespace(build=SimpleNamespace(leaves={"model/table": SimpleNamespace(names=("vocab", "embed"))}))
    data = SimpleNamespace(task=SimpleNamespace(name="mine", vocabulary=SimpleNamespace(fingerprint="ours")))
    train.initial(SimpleNamespace(init_from=str(tmp_path), renames={}), tmp_path / "run", stage, data, Console(soft_wrap=True))
    out = capsys.readouterr().out
    assert said in out and bool(out) == bool(said)
