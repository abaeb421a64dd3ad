import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.parallel.chips import CHIPS, GIB
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.topology import FORMS, topology
from ptmjax.types import UserError
from tests.compiled import needs_libtpu


@pytest.mark.parametrize("name, fault", [
    ("v7:2x2", r"--topology=v7:2x2 is not known: write v4:8x8x8, v5e:16x16, v5p:8x8x8, v6e:16x16, tpu7x:8x8x8, cpu:8, with"),
    ("v5e", "is not known"), ("v5e:16", "v5e has 2 axes, each of at least 1: write v5e:16x16"), ("v5e:2x2x2", "v5e has 2 axes"),
    ("v5p:16x16", "v5p has 3 axes, each of at least 1: write v5p:8x8x8"), ("v5e:0x2", "at least 1"), ("cpu:2x2", "cpu has 1 axis"),
    ("v5e:32x32", "has 1024 chips, a pod of v5e 256"), ("v5e:999999x999999", "a pod of v5e 256"), ("cpu:9", "jax has begun with 8 CPU devices"),
    ("cpu:1025", "at most 1024"), *((f"{kind}:{'9' * 5000}", f"--topology={kind}:9+... is not known") for kind in ("cpu", "v5e")),
    ("v5p:" + "x".join("2" * 5000), r"--topology=v5p:2x2x[2x]*\.\.\.: v5p has 3 axes"), ("cpu:٣", "is not known"),
])
def test_a_wrong_topology_is_one_line(name, fault):
    with pytest.raises(UserError, match=fault) as e:
        topology(name)
    assert "\n" not in str(e.value) and len(str(e.value)) < 300


@needs_libtpu
@pytest.mark.parametrize("name", FORMS)
def test_what_is_shown_as_an_example_is_taken(name):
    assert len(topology(name).devices) in (8, 256, 512, 1024)


def test_cpus():
    found = topology("cpu:4")
    assert found.chip is None and found.devices == jax.devices()[:4]


def test_without_libtpu_it_says_what_to_install():
    code = "import sys; sys.modules['libtpu'] = None; from ptmjax.parallel.topology import topology; topology('v5e:2x2')"
    env = {name: value for name, value in os.environ.items() if name != "TPU_LIBRARY_PATH"}  # libtpu sets it where it is imported
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "UserError: --topology=v5e:2x2 needs libtpu" in done.stderr and "pip install 'ptmjax[tpu]'" in done.stderr, done.stderr


@needs_libtpu
@pytest.mark.parametrize("name, devices", [("v4:2x2x1", 4), ("v5e:1x1", 1), ("v5e:4x8", 32), ("v5p:2x2x1", 4), ("v6e:2x2", 4), ("tpu7x:2x2x1", 8)])
def test_devices_with_the_memory_of_the_table(name, devices):
    """libtpu names what a program may take of it, where one takes more: up to 5 % less than the pages say, or for v5p 1 % more."""
    found = topology(name)
    assert len(found.devices) == devices and found.chip == CHIPS[name.partition(":")[0]]
    rows = NamedSharding(Mesh(np.array(found.devices), ("rows",)), P("rows"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="exceeds available HBM") as e:
        jax.jit(lambda x: jnp.sin(x)[:, ::-1].cumsum(1)).lower(jax.ShapeDtypeStruct((devices, 2**37), jnp.float32, sharding=rows)).compile()
    told = float(re.search(r"available HBM \(([\d.]+)G\)", str(e.value))[1])
    assert 0.95 * found.chip.memory <= told * GIB <= 1.01 * found.chip.memory


@needs_libtpu
def test_sizes_that_libtpu_refuses_are_one_line():
    with pytest.raises(UserError, match=r"--topology=v5e:3x3: libtpu refuses it \(.*not divisible.*\): give sizes of a pod, such as v5e:16x16") as e:
        topology("v5e:3x3")
    assert "\n" not in str(e.value)


@needs_libtpu
@pytest.mark.parametrize("mesh", ["data=-1,fsdp=4", "data=-1,fsdp=4,model=2", "fsdp=-1,model=2", "model=8"])
def test_a_mesh_may_split_an_axis_of_the_pod(mesh):
    """jax.make_mesh refuses it on v5p."""
    devices = topology("v5p:8x8x8").devices
    assert set(make_mesh(mesh, devices).devices.flat) == set(devices)


@needs_libtpu
def test_processes_do_not_wait_for_each_other():
    """libtpu would let one in at a time, and end the others with a word about its lock file."""
    code = "from ptmjax.parallel.topology import topology; input(len(topology('v5e:4x4').devices))"
    three = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for _ in range(3)]
    told = [p.stdout.read(2) for p in three]  # all of them hold it now
    assert [(p.communicate("\n"), p.returncode) for p in three] == [(("", ""), 0)] * 3 and told == ["16"] * 3
