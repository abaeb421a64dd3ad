"""The benchmarks on a machine that lacks what they compare with."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["train_step", "input"])
def test_without_the_peers_it_is_one_line_and_code_2(tmp_path, module):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", f"tests.bench.{module}", "--tiny"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "no torch and no transformers here, the benchmark needs the parity extra: pip install -e '.[test,parity]'\n"
