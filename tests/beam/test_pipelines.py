"""`ptmjax cache` by Apache Beam gives the bytes of this machine. Needs the extra "beam"; launch/test.sh --all runs it."""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MANY = ["--beam", "direct_num_workers=2", "--beam", "direct_running_mode=multi_processing"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Three files, the last of them JSON lines."""
    folder = tmp_path_factory.mktemp("text")
    for number, count in enumerate((40, 3)):
        (folder / f"{number}.txt").write_text("\n\n".join(f"Document {i % 31} of the sea. " * (i % 5 + 1) for i in range(count)))
    (folder / "2.jsonl").write_text("".join(f'{{"text": "story {i} of a king and a whale {i * i}. He went home."}}\n' for i in range(150)))
    return str(folder / "*")


def cache(folder, *words, code=0):
    command = [sys.executable, "-m", "ptmjax", "cache", "--gin_file=bert_demo.gin", f"--cache={folder}", *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True, text=True, timeout=400)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".digests.json"}


@pytest.fixture(scope="module")
def local(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    cache(folder, "--data", text, "--vocabulary=wordpiece:200")
    return files(folder)


@pytest.mark.parametrize("runner", [["--runner=DirectRunner"], ["--runner=DirectRunner", *MANY]])
def test_the_bytes_are_those_of_one_machine(text, tmp_path, local, runner):
    """The vocabulary too; in this process, and in workers of their own."""
    out, _ = cache(tmp_path / "beam", "--data", text, "--vocabulary=wordpiece:200", *runner, f"--staging={tmp_path / 'staging'}")
    assert files(tmp_path / "beam") == local and sum(name.endswith(".array_record") for name in local) > 8
    assert out.count("-validation-") == out.count("-train-") == 1 and "own_" in out and not list((tmp_path / "staging").iterdir())


def test_the_command_of_the_page(tmp_path):
    page = (ROOT / "docs" / "pods_data.md").read_text()
    [words] = [shlex.split(line) for line in re.findall(r"^ptmjax (cache .*--runner=.*)$", page, re.M)]
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "a.txt").write_text("\n\n".join(f"story {i} of a king and a whale {i * i}. He went home." for i in range(150)))
    env = os.environ | {"PTMJAX_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    subprocess.run([sys.executable, "-m", "ptmjax", *words], cwd=tmp_path, env=env, check=True)
    assert len(list((tmp_path / "cache").glob("own_*/manifest.json"))) == 4  # two stages, two splits


@pytest.mark.parametrize("words, told", [
    (["--runner=Walrus"], "--runner=Walrus: Unexpected pipeline runner"), (["--runner=DirectRunner", "--beam", "whale=1"], "--beam whale: Beam has no such option"),
    (["--runner=DirectRunner", "--beam", "direct_num_workers=many"], "many")])
def test_a_users_fault_is_one_line(text, tmp_path, words, told):
    _, err = cache(tmp_path, "--data", text, "--vocabulary=bytes", *words, code=2)
    [line] = [line for line in err.splitlines() if line.startswith("ptmjax: error: ")]
    assert told in line and "Traceback" not in err and not list(tmp_path.glob("own*"))


def test_a_fault_of_the_text_is_told_as_on_one_machine(text, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\0")
    said = [cache(tmp_path / name, "--data", f"{tmp_path}/x.txt", "--vocabulary=bytes", *words, code=2)[1].splitlines()[-1]
            for name, words in (("local", []), ("beam", ["--runner=DirectRunner"]))]
    assert said[0] == said[1] and "x.txt is binary" in said[0]
