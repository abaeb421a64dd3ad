"""The environment that the launchers make: an interpreter and a pip that fail leave none that looks whole, and keep a good one."""
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
# what `environment` asks of an interpreter; BROKEN is what fails
case "$*" in
  *" $BROKEN"* | "$BROKEN"*) echo "fake: $*" >&2; exit 1 ;;
  --version) echo Python 3.11.0 ;;
  "-m venv "*) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python" ;;
  "-m ptmjax train "*) echo trained ;;
  "-c import "*socket*) echo 1 ;;
esac
"""


@pytest.fixture
def launch(tmp_path):
    """(what fails) -> launch/processes.sh, of one process, in a checkout whose interpreters are fakes."""
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        (tmp_path / "bin" / name).write_text(PYTHON)
        (tmp_path / "bin" / name).chmod(0o755)
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).touch()

    def call(broken: str) -> subprocess.CompletedProcess:
        environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "BROKEN": broken}
        return subprocess.run(["bash", tmp_path / "launch" / "processes.sh", "1"], env=environment, capture_output=True, text=True, timeout=60)

    return call


@pytest.mark.parametrize("broken", ["pip install", "venv"])
def test_an_installation_that_fails_is_no_environment(launch, tmp_path, broken):
    assert launch(broken).returncode == 2 and not (tmp_path / ".venv" / "stamp").exists()
    done = launch("nothing")
    assert done.returncode == 0 and done.stdout == "trained\n" and (tmp_path / ".venv" / "stamp").exists(), done.stderr
    assert "installing" in done.stderr and "installing" not in launch("nothing").stderr  # once it is whole


def test_what_was_put_into_an_environment_stays(launch, tmp_path):
    """Where setup.py changes, what is new is installed; where that fails, the environment is as it was."""
    assert launch("nothing").returncode == 0
    (tmp_path / ".venv" / "mine").touch()
    (tmp_path / "setup.py").write_text("# other requirements")
    assert launch("pip install").returncode == 2 and (tmp_path / ".venv" / "mine").exists()
    done = launch("nothing")
    assert done.returncode == 0 and "needs besides" in done.stderr and (tmp_path / ".venv" / "mine").exists()
    assert "installing" not in launch("nothing").stderr


def test_without_an_interpreter_an_environment_that_is_there_stays(launch, tmp_path):
    assert launch("nothing").returncode == 0
    done = launch("-c import sys, venv")
    assert done.returncode == 2 and "no Python 3.11, 3.12 or 3.13 with pip on PATH" in done.stderr
    assert (tmp_path / ".venv" / "bin" / "python").exists() and "installing" not in launch("nothing").stderr
