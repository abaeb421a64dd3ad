from pathlib import Path

import pytest

from ptmjax.cli import variants
from ptmjax.cli.variants import Sweep
from ptmjax.types import UserError

READ = {"masked": ["eval --task='a b'", "mlm"]}


def test_what_runs_are_told():
    sweep = Sweep("base.gin", {"a": [], "b": ["TASK=t", "x/B.c='d e'"], "c": ["other.gin", "N=1"]}, READ, ["N=0"], 2)
    found = variants.runs(sweep, Path("/w"), ["STEPS=3"])
    assert [run.folder.name for run in found] == ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1"]
    assert found[1].words(Path("/c")) == ["train", "--gin_file=base.gin", "--gin.N=0", "--gin.TASK=t", "--gin.x/B.c='d e'", "--gin.STEPS=3",
                                          "--gin.Experiment.seed=0", "--workdir=/w/b-0", "--cache=/c"]
    assert found[5].files == ["other.gin"] and found[5].bindings == ["N=0", "N=1", "STEPS=3", "Experiment.seed=1"]
    assert variants.readouts(sweep) == [variants.Readout("masked", ["eval", "--task=a b"], ["mlm"])]


@pytest.mark.parametrize("more, fault", [
    ({"variants": {}}, "variants is 0"), ({"readouts": {}}, "readouts is 0"), ({"seeds": 0}, "seeds is 0"),
    ({"variants": {"a/b": []}}, "'a/b' is to be the name of a folder"), ({"readouts": {"": ["eval", "x"]}}, "'' is to be the name"),
    ({"readouts": {"m": ["eval"]}}, "name at least one number"), ({"variants": {"a": ["TASK"]}}, "variant 'a' says 'TASK': write NAME=VALUE"),
])
def test_faults_of_a_file(more, fault):
    with pytest.raises(UserError, match=fault):
        Sweep(**{"gin_file": "base.gin", "variants": {"a": []}, "readouts": READ} | more)


@pytest.mark.parametrize("command, fault", [("eval 'a", "cannot be read"), ("", "names no command")])
def test_faults_of_a_readout(command, fault):
    with pytest.raises(UserError, match=fault):
        variants.readouts(Sweep("base.gin", {"a": []}, {"m": [command, "x"]}))
