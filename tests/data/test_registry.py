"""Tasks by name, and when SeqIO has them."""
import json
import subprocess
import sys
from pathlib import Path

import ptmjax.tasks  # noqa: F401  registers
import pytest

from ptmjax.data import registry
from ptmjax.data.task import Mixture
from ptmjax.types import UserError

LATER = """
import contextlib, json, sys
from ptmjax.cli.main import main
with contextlib.redirect_stdout(sys.stderr):
    code = main(["train", "--gin_file=bert_demo.gin", "--workdir=" + sys.argv[1], "--dry_run"])
loaded = sorted({"tensorflow", "seqio", "torch", "transformers", "keras", "pandas", "matplotlib"} & set(sys.modules))
exec(sys.argv[2])
import seqio
from ptmjax.data import registry
names = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
print(json.dumps([code, loaded, sorted(registry._entries), sorted(names)]))
"""


@pytest.mark.parametrize("first", ["", "from ptmjax.data import adapters"])
def test_a_command_starts_without_tensorflow_and_seqio_has_every_task_when_it_comes(tmp_path, first):
    """By whatever comes first: SeqIO itself, or what adapts to it (a tfds: source does)."""
    done = subprocess.run([sys.executable, "-c", LATER, str(tmp_path / "run"), first], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    code, loaded, ours, theirs = json.loads(done.stdout.splitlines()[-1])
    assert (code, loaded) == (0, []) and ours == theirs and len(ours) > 100 and {"en_pd_mlm_64", "en_zh_mlm_tlm_64"} <= set(ours)


def test_a_name_is_taken_once_and_free_again_when_it_is_removed():
    first, second = registry.read("en_pd_mlm_64"), registry.read("en_pd_wwm_64")
    mixture = Mixture("two_of_them", (first, second), rates=(1, 1))
    registry.register(mixture)
    try:
        assert registry.read("two_of_them") == mixture
        with pytest.raises(UserError, match="'two_of_them' is registered already: give this one another name"):
            registry.register(mixture)
        with pytest.raises(UserError, match="'en_pd_mlm_64' is registered already"):
            registry.register(first)
    finally:
        registry.remove("two_of_them")
    with pytest.raises(UserError, match="task 'two_of_them' is not registered: did you mean"):
        registry.read("two_of_them")
    with pytest.raises(UserError, match="task 'two_of_them' is not registered: it cannot be removed"):
        registry.remove("two_of_them")
    with pytest.raises(UserError, match="dupe_factor is 0"):
        registry.register(mixture, dupe_factor=0)
