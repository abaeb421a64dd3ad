"""Who may import whom, which packages stay out of the core, and the limits of size: rules of the house, read off the syntax trees."""
import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = {"types", "nn", "models", "objectives", "parallel", "training", "decode"}
LAYERS = {  # layer -> what of ptmjax it may import, besides itself
    "__init__": set(),
    "__main__": {"cli", "training.interrupt"},
    "types": set(),
    "nn": {"types"},
    "models": {"types", "nn"},
    "objectives": {"types"},
    "parallel": {"types"},
    "training": {"types", "parallel", "objectives.base"},
    "data": {"types"},
    "tasks": {"types", "data"},
    "decode": {"types", "models"},
    "convert": {"types", "nn", "models", "training"},
    "transfer": {"types", "models", "training"},
    "compress": {"types", "models", "training"},
    "probe": {"types", "models", "training"},
    "cli": {*CORE, "data", "tasks", "convert", "transfer", "compress", "probe", "cli"},
}
TENSORFLOW = ("data.adapters", "convert")
OUTSIDE = {  # package -> where it may be imported
    "gin": ("cli",),
    "grain": ("data.loader",),
    "apache_beam": ("data.beam",),
    "seqio": TENSORFLOW,
    "tensorflow": TENSORFLOW,
    "tensorflow_datasets": TENSORFLOW,
    "tensorflow_text": TENSORFLOW,
    "torch": ("convert",),
    "transformers": ("convert",),
    "clu": (),  # imports TensorFlow, as flax.metrics does
    "flax.metrics": (),
    "tasks": (),  # by its bare name the registrations would run twice
}
LAZY = {"tensorflow", "torch", "transformers"}  # in convert: inside a function


def under(name: str, parents) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in parents)


def sources() -> dict[str, Path]:
    """Dotted name inside ptmjax (nn.block, tasks.corpora, nn for its __init__) -> file."""
    files = {p.relative_to(ROOT / "ptmjax"): p for p in (ROOT / "ptmjax").rglob("*.py")}
    files |= {p.relative_to(ROOT): p for p in (ROOT / "tasks").rglob("*.py")}
    return {".".join(k.with_suffix("").parts).removesuffix(".__init__"): p for k, p in files.items()}


def imported(tree: ast.AST, module: str, is_package: bool) -> list[tuple[str, bool]]:
    """(dotted name, at the top of the file) of all imports; of `from a import b` both a and a.b are told."""
    top, found = set(map(id, getattr(tree, "body", ()))), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(a.name, id(node) in top) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = ["ptmjax", *module.split(".")]
            base = inside[: len(inside) - node.level + is_package] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            found += [(n, id(node) in top) for n in (name, *(f"{name}.{a.name}" for a in node.names))]
    return found


def import_faults(source: str, module: str, is_package: bool = False) -> list[str]:
    layer, faults = module.partition(".")[0], []
    for name, top in imported(ast.parse(source), module, is_package):
        inner = name.removeprefix("ptmjax.")
        if inner != name and inner.partition(".")[0] in LAYERS and not under(inner, LAYERS[layer] | {layer}):
            if not any(f"{a}.".startswith(f"{inner}.") for a in LAYERS[layer]):  # `objectives` of objectives.base: its __init__ is empty
                faults.append(f"{module} imports {name}")
        for package, places in OUTSIDE.items():
            if under(name, [package]) and (not under(module, places) or layer == "convert" and package in LAZY and top):
                faults.append(f"{module} imports {name}")
    return faults


def size_faults(source: str) -> list[str]:
    tree, faults = ast.parse(source), []
    if source.count("\n") > 600:
        faults.append("file of more than 600 lines")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.end_lineno - node.lineno >= 80:
                faults.append(f"{node.name} has more than 80 lines")
            if node.name == "__init__" and len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1 > 20:
                faults.append(f"__init__ in line {node.lineno} has more than 20 parameters")
    return faults


# ------------------------------------------------------------------ the rules hold, and the tests of them bite
@pytest.mark.parametrize("module", sorted(sources()))
def test_directions(module):
    path = sources()[module]
    assert module.partition(".")[0] in LAYERS, f"{path}: a layer that DESIGN.md does not have"
    assert import_faults(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    "module, source",
    [
        ("nn.block", "from ptmjax.models import network"),
        ("nn.block", "import ptmjax.training.step"),
        ("nn.block", "from ..models import network"),
        ("nn.block", "from ptmjax import data"),
        ("nn.block", "def f():\n    import ptmjax.cli.config"),
        ("models.network", "from ptmjax.objectives.base import Objective"),
        ("objectives.token", "from ptmjax.nn.linear import Linear"),
        ("training.step", "from ptmjax.objectives.token import MaskedTokens"),
        ("training.step", "from ptmjax.objectives import token"),
        ("data.loader", "import ptmjax.tasks"),
        ("tasks.corpora", "from ptmjax.models import network"),
        ("training.loop", "import gin"),
        ("training.loop", "from gin import config"),
        ("data.order", "import grain.python"),
        ("data.records", "import apache_beam as beam"),
        ("data.loader", "import seqio"),
        ("tasks.pretrain", "import seqio"),
        ("data.records", "import tensorflow as tf"),
        ("cli.train", "import torch"),
        ("convert.bert", "import torch"),
        ("training.metrics", "import flax.metrics"),
        ("training.metrics", "from flax import metrics"),
        ("training.metrics", "from clu import metrics"),
        ("cli.train", "import tasks.corpora"),
        ("types", "from ptmjax import nn"),
    ],
)
def test_a_wrong_direction_is_seen(module, source):
    assert import_faults(source, module)


@pytest.mark.parametrize(
    "module, source",
    [
        ("nn.block", "from ptmjax.types import Key\nfrom ptmjax.nn import linear\nfrom . import mlp\nimport jax"),
        ("training.step", "from ptmjax.objectives.base import Objective\nfrom ptmjax.objectives import base\nfrom ptmjax import types"),
        ("training.metrics", "from ptmjax import __version__"),
        ("tasks.corpora", "from ptmjax.data import registry"),
        ("data.adapters", "import seqio"),
        ("data.loader", "import grain"),
        ("convert.bert", "def read(path):\n    import torch\n    import tensorflow as tf"),
        ("cli.train", "import gin\nimport ptmjax.tasks\nfrom ptmjax.training import loop"),
    ],
)
def test_a_right_direction_passes(module, source):
    assert import_faults(source, module) == []


def test_names_and_sizes():
    files = [p for folder in ("ptmjax", "tasks", "tests", "gin") for p in (ROOT / folder).rglob("*.py")] + [ROOT / "setup.py"]
    assert ROOT / "ptmjax" / "types.py" in files and Path(__file__) in files
    assert not [p for p in files if p.name == "utils.py" or p.parent == ROOT / "gin"]
    assert {str(p): faults for p in files if (faults := size_faults(p.read_text(encoding="utf-8")))} == {}
    assert not [str(p) for p in files if any(n == "tasks" for n, _ in imported(ast.parse(p.read_text(encoding="utf-8")), "tests", False))]


def test_a_size_beyond_the_limit_is_seen():
    body = "    pass\n"
    assert size_faults("def f():\n" + body * 79) == [] and size_faults("def f():\n" + body * 80)
    head = "class A:\n    def __init__(self, " + ", ".join(f"a{i}" for i in range(20))
    assert size_faults(f"{head}): ...") == [] and size_faults(f"{head}, *, key): ...")
    assert size_faults("\n" * 600) == [] and size_faults("\n" * 601)


# ------------------------------------------------------------------ the core without the heavy packages
BLOCKED = ("apache_beam", "tensorflow", "tensorflow_datasets", "tensorflow_text", "seqio", "grain", "gin", "torch", "transformers")
IMPORTER = """
import importlib, importlib.abc, json, sys, traceback
blocked, modules = json.loads(sys.argv[1])
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Block())
outcome = {}
for name in modules:
    try:
        importlib.import_module(name)
        outcome[name] = "imported"
    except Exception:
        outcome[name] = traceback.format_exc()
outcome["loaded"] = sorted({m.partition(".")[0] for m in sys.modules} & set(blocked))
print(json.dumps(outcome))
"""


def core_modules() -> list[str]:
    """All of the core and of the tasks, and of data what neither reads through Grain nor adapts to SeqIO."""
    free = ("data.loader", "data.adapters")
    return sorted(f"ptmjax.{n}" for n in sources() if under(n, CORE) or under(n, ["data", "tasks"]) and n not in free)


def import_blocked(modules) -> dict[str, str]:
    command = [sys.executable, "-c", IMPORTER, json.dumps([BLOCKED, modules])]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def outcome():
    return import_blocked([*core_modules(), "seqio", "gin"])


@pytest.mark.parametrize("module", core_modules())
def test_the_core_imports_without_tensorflow_seqio_grain_gin_and_torch(module, outcome):
    assert outcome[module] == "imported", outcome[module]


def test_the_blocked_packages_are_really_blocked(outcome):
    assert "ptmjax.types" in core_modules() and outcome["loaded"] == []
    assert "gin is blocked" in outcome["gin"] and "seqio is blocked" in outcome["seqio"]
