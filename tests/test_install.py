"""Three ways to have ptmjax: a wheel, an editable install, the root of a checkout.  No network: nothing is resolved or downloaded."""
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOOK = """
import importlib.util, json, ptmjax
tasks, gin = importlib.util.find_spec("ptmjax.tasks").origin, ptmjax.gin_folder()
print(json.dumps([ptmjax.__file__, tasks, str(gin), sorted(p.name for p in gin.rglob("*.gin"))]))
"""
GIN = sorted(p.name for p in (ROOT / "gin").rglob("*.gin"))


def run(*command, **keywords) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path) -> Path:
    """A copy of what is packaged, so that a build leaves nothing in the checkout."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("ptmjax", "tasks", "gin", "tests", "launch"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture
def empty(tmp_path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def check(python, package: Path, tasks: Path, gin: Path, **keywords) -> None:
    """ptmjax is the one at `package`, its tasks and gin files are found, and the command answers."""
    assert json.loads(run(python, "-c", LOOK, **keywords)) == [str(package / "__init__.py"), str(tasks / "__init__.py"), str(gin), GIN]
    assert GIN
    assert "usage: ptmjax" in run(python, "-m", "ptmjax", "--help", **keywords)


def test_a_wheel_in_an_empty_folder(project, empty, tmp_path):
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, project)
    (wheel,) = tmp_path.glob("ptmjax-*.whl")
    tops = {n.split("/")[0] for n in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"ptmjax", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    assert not [n for n in zipfile.ZipFile(wheel).namelist() if n.startswith(("ptmjax/tests", "ptmjax/launch", "ptmjax/gin/__init__"))]
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
    shutil.rmtree(project)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    check(sys.executable, site / "ptmjax", site / "ptmjax" / "tasks", site / "ptmjax" / "gin", cwd=empty, env=environment)
    assert "usage: ptmjax" in run(site / "bin" / "ptmjax", "--help", cwd=empty, env=environment)
    shipped = sorted(p.name for p in (ROOT / "tasks" / "shipped").iterdir() if p.is_file())
    assert sorted(p.name for p in (site / "ptmjax" / "tasks" / "shipped").iterdir()) == shipped


def test_an_editable_install(project, empty, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # the packages of this environment, but not its editable installs
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", *options, "--editable", project)
    check(python, project / "ptmjax", project / "tasks", project / "gin", cwd=empty)
    assert "usage: ptmjax" in run(python.parent / "ptmjax", "--help", cwd=empty)


def test_the_root_of_a_checkout():
    check(sys.executable, ROOT / "ptmjax", ROOT / "tasks", ROOT / "gin", cwd=ROOT)
