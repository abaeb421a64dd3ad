import json
import os
import subprocess
import sys

import pytest

from ptmjax.parallel import libtpu
from tests.compiled import needs_libtpu


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setattr(os, "environ", {"TPU_LOG_DIR": "mine"})
    libtpu.alone()
    assert os.environ == libtpu.ALONE | {"TPU_LOG_DIR": "mine"}


@pytest.mark.parametrize("given, wanted", [
    (None, "--fibers_default_thread_stack_size=8388608"), ("--mine=1", "--mine=1 --fibers_default_thread_stack_size=8388608"),
    ("--fibers_default_thread_stack_size=9", "--fibers_default_thread_stack_size=9")])
def test_a_deeper_stack_beside_the_user_s_flags(monkeypatch, given, wanted):
    monkeypatch.setattr(os, "environ", {} if given is None else {"LIBTPU_INIT_ARGS": given})
    libtpu.deep()
    assert os.environ == {"LIBTPU_INIT_ARGS": wanted}


@pytest.mark.slow
@needs_libtpu
def test_a_step_in_bfloat16_for_tpu7x_does_not_end_the_process():
    """As it does without the deeper stack."""
    words = ["--gin_file=t5_small.gin", "--gin.LAYERS=1", "--gin.BATCH=32", "--gin.Experiment.compute='bfloat16'"]
    done = subprocess.run([sys.executable, "-m", "ptmjax", "compile", *words, "--topology=tpu7x:1x1x1", "--mesh=data=2", "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-300:]
    report = json.loads(done.stdout)
    assert report["chips"] == 1 and report["fits"] and report["memory"] == 96 * 2**30 and report["seconds_at_least"]["network"] is None


def test_chips_are_googles_devices(tmp_path):
    for name, vendor in {"0000:00:01.0": "0x8086", "0000:00:02.0": "0x10de"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
    assert not libtpu.has_chips(tmp_path) and not libtpu.has_chips(tmp_path / "none")
    (tmp_path / "0000:00:02.0" / "vendor").write_text("0x1ae0\n")
    assert libtpu.has_chips(tmp_path)


@needs_libtpu
def test_jax_that_looks_for_a_tpu_finds_none_and_says_nothing():
    """As in a command of a machine on which libtpu is installed to compile with."""
    code = "from ptmjax.cli import quiet; quiet.set_levels(); import jax; print(jax.devices()[0].platform)"
    env = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", *libtpu.ALONE)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu\n", "")
