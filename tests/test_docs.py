"""What the pages promise: their commands and their files, run as a reader would."""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}.", "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def commands(page: str, part: str = "") -> list[list[str]]:
    """The words of every command line of the page's bash blocks, or of the one block behind the line that begins with `part`."""
    found = blocks(page, "bash")
    if part:
        text = (ROOT / page).read_text(encoding="utf-8")
        found = re.findall(r"^```bash\n(.*?)^```", text[text.index(f"\n{part}"):], re.M | re.S)[:1]
    return [shlex.split(line, comments=True) for block in found for line in block.splitlines() if line.strip()]


def ptmjax(words: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / link).exists(), link


def test_the_pages_name_only_commands_that_are_tested():
    """Every command of the README is run here, or by the tests of launch/ and of several processes."""
    names = {(words[0], words[1]) for page in PAGES for words in commands(page)}
    assert names <= {("ptmjax", c) for c in ("train", "eval", "fill", "inspect", "list", "export", "detect")} | {
        ("bash", "launch/local.sh"), ("bash", "launch/test.sh")}, names


@pytest.mark.parametrize("part, which", [
    ("## Commands", ["train", "eval", "fill", "inspect", "list"]),
    pytest.param("Spans, replaced", ["train", "fill", "export", "train", "detect"], marks=pytest.mark.slow),
])
def test_readme_commands(part, which, tmp_path):
    """As written, with the runs cut to 12 steps; --distributed joins a cluster and is left to tests/test_processes.py."""
    ran = []
    for words in commands("README.md", part):
        if words[0] == "ptmjax" and "--distributed" not in words:
            more = ["--gin.STEPS=12", "--gin.Every.evaluate=6"] if words[1] == "train" else []
            out = ptmjax(words + more, tmp_path)
            ran.append(words[1])
            assert out.strip()
            if words[1] == "train" and "--workdir=runs/demo" in words:
                made = {p.name for p in (tmp_path / "runs/demo").iterdir()}
                named = set(re.findall(r"`([\w.]+)/?`", re.search(r"A work folder holds(.*?)\n[A-Z]", (ROOT / "README.md").read_text(), re.S)[1]))
                assert named <= made, named - made
                assert "complete" in ptmjax(words + more, tmp_path)
    assert ran == which


def test_an_objective_of_ones_own(tmp_path):
    page = "docs/objective.md"
    files = re.findall(r"^`([\w.]+)`\n```\w*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert [name for name, _ in files] == ["my_shuffle.py", "my_shuffle.gin", "test_my_shuffle.py"]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = "the quick brown fox jumps over the lazy dog and runs into the deep dark wood".split()
    (tmp_path / "my.txt").write_text("\n\n".join(f"story {i}. " + " ".join(words[(i + j) % 16] for j in range(90)) for i in range(120)))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_my_shuffle.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    for command in commands(page):
        out = ptmjax([*command, f"--cache={tmp_path / 'cache'}"], tmp_path)
    assert "unigram" in out
