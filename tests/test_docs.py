"""What the pages promise: their commands and their files, run as a reader would."""
import importlib
import itertools
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


SMALL = [f"--gin.{name}={n}" for name, n in dict(D=16, LAYERS=1, HEADS=2, HIDDEN=32, BATCH=8, STEPS_SHORT=2, STEPS_LONG=1, WARMUP=1).items()]


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
    """words: settings of the environment (NAME=value), then the command."""
    env = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: word != "ptmjax", words))
    done = subprocess.run([sys.executable, "-m", *words[len(env):]], cwd=folder, env=ENV | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / link).exists(), link


def test_the_pages_name_only_commands_that_are_tested():
    """Every command of the README is run here, or by the tests of launch/ and of several processes."""
    names = {tuple(w for w in words if not w.startswith("XLA_FLAGS="))[:2] for page in PAGES for words in commands(page)}
    assert names <= {("ptmjax", c) for c in ("train", "eval", "fill", "inspect", "list", "export", "detect", "vocab", "corpora", "report", "cache", "compile", "sweep", "probe")} | {
        ("bash", f"launch/{script}.sh") for script in ("local", "test", "processes", "again", "slurm", "tpu_vm", "gke")} | {("docker", "build")}, names


@pytest.mark.parametrize("part, which", [
    ("## Commands", ["train", "eval", "fill", "inspect", "list", "report", "corpora", "compile"]),
    pytest.param("Spans, replaced", ["train", "fill", "export", "train", "detect", "sweep", "probe"], marks=pytest.mark.slow),
    pytest.param("## Several devices", ["train"], marks=pytest.mark.slow),
])
def test_readme_commands(part, which, tmp_path):
    """As written, with the runs cut to 12 steps, and a small model compiled for eight CPUs in place of the pod; --distributed joins a
    cluster and is left to tests/test_processes.py."""
    ran = []
    for words in commands("README.md", part):
        if "ptmjax" in words and "--distributed" not in words:
            command = words[words.index("ptmjax") + 1]
            more = {"train": ["--gin.STEPS=12", "--gin.Every.evaluate=6"], "compile": ["--topology=cpu:8", "--mesh=data=4,model=2", *SMALL]}.get(command, [])
            out = ptmjax(words + more, tmp_path)
            ran.append(command)
            assert out.strip() and ("'fsdp': 4" in out or not words[0].startswith("XLA_FLAGS"))
            if command == "train" and "--workdir=runs/demo" in words:
                made = {p.name for p in (tmp_path / "runs/demo").iterdir()}
                named = set(re.findall(r"`([\w.]+)/?`", re.search(r"A work folder holds(.*?)\n[A-Z]", (ROOT / "README.md").read_text(), re.S)[1]))
                assert named <= made, named - made
                assert "complete" in ptmjax(words + more, tmp_path)
    assert ran == which


WORDS = "the quick brown fox jumps over the lazy dog and runs into the deep dark wood".split()


def lay(page: str, folder: Path, names: list[str]) -> None:
    """The files that the page shows, as a reader makes them, and a text, my.txt."""
    files = re.findall(r"^`([\w.]+)`\n```\w*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert [name for name, _ in files] == names
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "my.txt").write_text("\n\n".join(f"story {i}. " + " ".join(WORDS[(i + j) % 16] for j in range(90)) for i in range(120)))


@pytest.mark.parametrize("page, part", [pytest.param("README.md", "## Your own text", marks=pytest.mark.slow), pytest.param("docs/own_text.md", "# Your own text", marks=pytest.mark.slow), ("docs/own_text.md", "`--cased`")])
def test_a_text_of_ones_own(page, part, tmp_path):
    """As written but for its sizes."""
    (tmp_path / "my").mkdir()
    lay("docs/own_text.md", tmp_path / "my", ["my_tasks.py", "my_bert.gin"])
    found = commands(page, part) if page == "README.md" else [words for words in commands(page) if (words[1] == "vocab") == (part == "`--cased`") and "--gin_file=my_bert.gin" not in words]
    for words in found:
        out = ptmjax([*words, *(SMALL if words[1] in ("train", "inspect") else []), f"--cache={tmp_path / 'cache'}"], tmp_path)
        assert "en_pd_mlm_128: " not in out.replace("own_en_pd_mlm_128: ", "") and ("held out at step 3" in out or words[1] != "train" or "--dry_run" in words), out
    assert found


@pytest.mark.slow
def test_the_page_on_chinese(tmp_path):
    """As written, on texts in the three forms that it shows; the one run that is trained is cut down."""
    (tmp_path / "my").mkdir()
    lines = [(ROOT / "tasks" / "shipped" / f"zh_{form}.txt").read_text(encoding="utf-8").splitlines() for form in ("spaced", "tagged")]
    for name, end, of in (("zh_spaced", "\n\n", lines[0]), ("zh_tagged", "\n", lines[1]), ("zh", "\n\n", [line.replace(" ", "") for line in lines[0]])):
        (tmp_path / "my" / f"{name}.txt").write_text(end.join(f"{line} {of[i]}" for i in range(12) for line in of), encoding="utf-8")
    (tmp_path / "my" / "dialogues.txt").write_text("\n\n".join(f"Q: {a}\nR: {b}" for a, b in zip(lines[0] * 6, lines[0][1:] * 6)), encoding="utf-8")
    found = commands("docs/chinese.md")
    for words in found:
        small = SMALL if "--gin_file=bert_base_mlm.gin" in words else []
        out = ptmjax([*words, *small, f"--cache={tmp_path / 'cache'}"], tmp_path)
        assert "unmatched" not in out and "untagged" not in out and ("held out at step 3" in out) == bool(small), out
        assert "[" in out.split("original", 1)[1].split("corrupted")[0] if words[1] == "inspect" else out.strip()
    assert [words[1] for words in found] == ["vocab", "inspect", *["train"] * 4, "inspect", "train", "inspect"]


def test_a_task_of_ones_own(tmp_path):
    """BERT on one's own task and vocabulary, as written but for its sizes; both stages are trained on it."""
    lay("docs/own_text.md", tmp_path, ["my_tasks.py", "my_bert.gin"])
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "story", ".", *map(str, range(10)), *(f"##{n}" for n in range(10))]
    (tmp_path / "vocab.txt").write_text("\n".join([*symbols, *sorted(set(WORDS))]) + "\n")
    [command] = commands("docs/own_text.md", "`my_bert.gin`")
    out = ptmjax([*command, *SMALL, f"--cache={tmp_path / 'cache'}"], tmp_path)
    assert "my_128: " in out and "my_512: " in out and "en_pd" not in out and "held out at step 3" in out, out


def plain(page: str) -> list[str]:
    """What a page's fenced blocks say, without comments."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    return [f"{kind}\n" + re.sub(r" +# .*|\"目录\"|\"folder\"", "", text) for kind, text in found]


def test_the_chinese_page_is_in_step():
    """The same sections, files, commands, links, and numbers of the tables."""
    text = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/README_zh.md")}
    assert plain("docs/README_zh.md") == plain("README.md")
    of = lambda pattern: [re.findall(pattern, text[page], re.M) for page in text]
    sections, ours = of("^#+ ")
    assert sections == ours
    for pattern in (r"[\w-]+\.(?:gin|md)(?=\))", r"(?<=\| )\.?\d[\d.]*(?= \|)"):
        there, here = of(pattern)
        assert sorted(set(there) - {"README_zh.md"}) == sorted(set(here)) and there, pattern


def test_an_objective_of_ones_own(tmp_path):
    page = "docs/objective.md"
    lay(page, tmp_path, ["my_shuffle.py", "my_shuffle.gin", "test_my_shuffle.py", "my_order.py", "my_order.gin"])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_my_shuffle.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    for command in commands(page):
        out = ptmjax([*command, f"--cache={tmp_path / 'cache'}"], tmp_path)
        assert ("unigram" in out) == ("my_shuffle" in " ".join(command) and command[1] == "train")
    assert "balanced accuracy of moved" in out


def test_the_commands_of_sweeps_can_be_read():
    from ptmjax.cli.main import commands as known
    from ptmjax.cli.main import options, parser_of
    names, found = known(), commands("docs/sweeps.md")
    for words in found:
        options(parser_of(words[1], importlib.import_module(f"ptmjax.cli.{words[1]}"), names[words[1]]), words[2:])
    assert {words[1] for words in found} == {"sweep", "eval", "probe"}


@pytest.mark.slow
def test_a_sweep_of_ones_own(tmp_path):
    """The file of the page, checked whole."""
    page = "docs/sweeps.md"
    [(name, text)] = re.findall(r"^`([\w.]+)`\n```\w*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / name).write_text(text, encoding="utf-8")
    [command] = [words for words in commands(page) if name in words]
    out = ptmjax([*command, f"--cache={tmp_path / 'cache'}", *(word for word in SMALL if not word.startswith("--gin.STEPS_")), "--gin.SIZE=8"], tmp_path)
    assert out.startswith("6 runs, 6 of them not done, each read out as masked, parts\nptmjax train --gin_file=bert_demo.gin") and out.count("TASK=en_pd_wwm_64") == 3


@pytest.mark.slow
def test_the_shipped_sweeps(tmp_path):
    for path in sorted((ROOT / "gin/sweeps").glob("*.gin")):
        out = ptmjax(["ptmjax", "sweep", f"sweeps/{path.name}", f"--workdir={tmp_path / path.stem}", f"--cache={tmp_path / 'cache'}", "--dry_run"], tmp_path)
        assert " of them not done" in out and not (tmp_path / path.stem).exists()
