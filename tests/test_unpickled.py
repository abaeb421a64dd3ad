"""What is given is never unpickled: a pickle is a program, and a file of weights that is one would be run."""
import ast
import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ptmjax.convert import partial, published
from ptmjax.data.masking import Masking
from ptmjax.data.records import build
from ptmjax.data.task import Task
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.windows import Blocks
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import UserError
from tests.training.test_checkpoint import like, restored, state_of, stored

ROOT = Path(__file__).parents[1]
UNPICKLERS = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


# ------------------------------------------------------------------ by the syntax trees
def faults(source: str) -> list[str]:
    """Imports of what unpickles, and calls that may."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.partition(".")[0] in UNPICKLERS]
        if isinstance(node, ast.Call):
            found += [ast.unparse(node)] * may_unpickle(node)
    return found


def may_unpickle(call: ast.Call) -> bool:
    given = {k.arg: getattr(k.value, "value", "?") for k in call.keywords}
    name = ast.unparse(call.func)
    if name.endswith("torch.load"):
        return given.get("weights_only") is not True
    by_place = name in ("np.load", "numpy.load") and len(call.args) > 2  # file, mmap_mode, allow_pickle
    return by_place or given.get("allow_pickle", False) is not False or name.rpartition(".")[2] == "read_pickle"


def test_no_file_imports_or_calls_what_unpickles():
    files = [p for folder in ("ptmjax", "tasks") for p in (ROOT / folder).rglob("*.py")]
    assert ROOT / "ptmjax" / "types.py" in files
    assert {str(p): found for p in files if (found := faults(p.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("source", [
    "import pickle", "import joblib.numpy_pickle", "from dill import loads", "def f():\n    import marshal", "np.load(f, allow_pickle=True)",
    "np.load(f, None, True)", "np.load(f, allow_pickle=trusted)", "torch.load(f)", "torch.load(f, weights_only=False)", "pd.read_pickle(f)"])
def test_what_unpickles_is_seen(source):
    assert faults(source)
    assert faults("import json\nnp.load(f)\nnp.load(f, allow_pickle=False)\ntorch.load(f, weights_only=True)\nnp.save(f, x, allow_pickle=False)") == []


# ------------------------------------------------------------------ by files that would do something
class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, fuse: Path):
        self.fuse = fuse

    def __reduce__(self):
        return Path.touch, (self.fuse,)


def raw(kind: str, fuse: Path) -> bytes:
    """A pickle; an array of objects; a file as torch.save writes it."""
    plain, out = pickle.dumps(Bomb(fuse)), io.BytesIO()
    if kind == ".npy":
        np.save(out, np.array([Bomb(fuse)], object), allow_pickle=True)
    elif kind == ".pt":
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("archive/data.pkl", plain)
    return out.getvalue() or plain


@pytest.fixture(params=[".pkl", ".npy", ".pt"])
def bomb(request, tmp_path):
    """Bytes that have gone off nowhere at the end of the test, and would."""
    fuse = tmp_path / "gone off"
    yield raw(request.param, fuse)
    assert not fuse.exists()
    pickle.loads(pickle.dumps(Bomb(fuse)))
    assert fuse.exists()


def test_weights(bomb, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    for name, words in (("pytorch_model.bin", "has neither model.safetensors"), ("model.safetensors", "model.safetensors cannot be read")):
        (tmp_path / name).write_bytes(bomb)
        with pytest.raises(UserError, match=words):
            published.load(tmp_path)
    with pytest.raises(UserError, match="cannot be read .*name the folder of a published model"):
        published.load(tmp_path / "pytorch_model.bin")


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("run") / partial.FOLDER, [3])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves coroutines behind when a read fails
def test_a_step_of_a_run(bomb, step, tmp_path):
    """In the place of each of its files: the step is refused, or its numbers are those that were saved."""
    for number, name in enumerate(p.relative_to(step) for p in sorted(step.rglob("*")) if p.is_file()):
        folder = shutil.copytree(step, tmp_path / str(number))
        (folder / name).write_bytes(bomb)
        try:
            state, _ = restored(folder)
        except UserError as e:
            assert "can be read" in str(e), name
        else:
            assert like(state) == like(state_of(3)) and (state["params"]["w"] == state_of(3)["params"]["w"]).all(), name


def test_vocabularies_and_prepared_data(bomb, tmp_path):
    for name, kind in (("vocab.txt", WordPiece), ("tokenizer.json", WordPiece), ("x.model", SentencePiece)):
        (tmp_path / name).write_bytes(bomb)
        with pytest.raises(UserError, match="is not a "):
            kind(str(tmp_path / name)).size
    (tmp_path / "t.txt").write_text("of the sea and the whale")
    english = SentencePiece(str(ROOT / "tasks" / "shipped" / "en_pd_4096.model"))
    task = Task("sea", str(tmp_path / "t.txt"), english, Blocks(16), Masking(english, 18), holdout=10**6, shards=1)
    make = lambda: build(task, "train", str(tmp_path / "cache"), workers=1, progress=False)
    for name in [p.name for p in make().folder.iterdir()]:
        (make().folder / name).write_bytes(bomb)
        with pytest.raises(UserError, match="and it is built again"):
            (found := make()).counts, found[0]
        shutil.rmtree(next((tmp_path / "cache").iterdir()))
