import os
import subprocess
import sys

from ptmjax.parallel import libtpu
from tests.compiled import needs_libtpu


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setattr(os, "environ", {"TPU_LOG_DIR": "mine"})
    libtpu.alone()
    assert os.environ == libtpu.ALONE | {"TPU_LOG_DIR": "mine"}


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
