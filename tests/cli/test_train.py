"""What train makes of parts that do not fit together."""
import pytest

from ptmjax.cli import experiment
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

    monkeypatch.setattr(experiment, "build", build)
    with pytest.raises(AttributeError, match="a worker's"):
        main(["train", "--gin_file=bert_demo.gin", f"--workdir={tmp_path / 'run'}", f"--cache={tmp_path}"])
