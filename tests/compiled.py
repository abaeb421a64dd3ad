"""The shipped systems, shrunk, as `ptmjax compile` compiles them; shared by the tests of what a compiled step says."""
import argparse
import functools
import importlib.util
import re

import jax
import pytest

from ptmjax.cli import compile
from ptmjax.parallel.topology import topology

jax.devices()  # all eight, before topology() asks for fewer
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is for Linux on x86 alone")
COMMON = dict(V=1100, LAYERS=2, HEADS=4, BATCH=8)
SHRUNK = {
    "bert_large": dict(D=32, HIDDEN=64, TASK_SHORT="'en_pd_nsp_64'", SLOTS_SHORT=10),
    "t5_large": dict(D=32, SIZE=8, HIDDEN=64, TASK="'en_pd_spans_64'"),
    "electra_large": dict(D=32, E=32, HIDDEN=64, GD=16, GHEADS=4, GHIDDEN=32, TASK="'en_pd_rtd_64'", SLOTS=10),
}


def args(name: str, place: str = "cpu:8", mesh: str = "data=8", **macros) -> argparse.Namespace:
    """Of the first stage; a macro that a file does not have is not given."""
    bindings = [f"{key}={value}" for key, value in (COMMON | SHRUNK[name] | macros).items()]
    return argparse.Namespace(gin_files=[f"{name}.gin"], gin_bindings=bindings, topology=place, mesh=mesh, microbatches=None, remat=None,
                              stage=1, json=True)


@functools.cache
def step(name: str, place: str = "cpu:8", mesh: str = "data=8", micro: int | None = None, remat: str | None = None, **macros) -> compile.Step:
    return compile.traced(args(name, place, mesh, **macros), topology(place), remat, micro)


@functools.cache
def compiled(name: str, place: str = "cpu:8", mesh: str = "data=8", **more) -> jax.stages.Compiled:
    found = step(name, place, mesh, **more)
    with jax.set_mesh(found.plan.mesh):
        return found.traced.lower().compile()


def full_vocabulary(program: str, entries: int) -> list[str]:
    """Arrays of rank 2 and more whose last axis is a whole (padded) vocabulary, in the text of a compiled program."""
    return re.findall(rf"\w+\[(?:\d+,)+{entries}\]", program)
