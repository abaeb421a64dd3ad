import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from ptmjax.parallel.mesh import AXES, make_mesh, parse, placed
from ptmjax.parallel.topology import topology
from ptmjax.types import UserError
from tests.compiled import needs_libtpu


def test_parse():
    assert parse("data=4, model=2") == {"data": 4, "model": 2} and parse("") == {} and parse("fsdp=-1") == {"fsdp": -1}


@pytest.mark.parametrize("text", ["modle=2", "data", "data=", "data=two", "data=2.5", "data=--2", "data=-", "data=²", "data=2,data=4", "2", "data:2", f"data={'9' * 5000}"])
def test_a_misspelt_mesh_names_the_part_and_the_axes(text):
    with pytest.raises(UserError, match=r"mesh '.*': '.*' is not one of data=N, fsdp=N, model=N, each at most once") as e:
        parse(text)
    assert "\n" not in str(e.value) and len(str(e.value)) < 300


@pytest.mark.parametrize("text, shape", [
    ("", (8, 1, 1)), ("data=8", (8, 1, 1)), ("fsdp=8", (1, 8, 1)), ("data=2,fsdp=2,model=2", (2, 2, 2)), ("model=4", (2, 1, 4)),
    ("data=-1,model=2", (4, 1, 2)), ("data=2,model=-1", (2, 1, 4)), ("data=1,fsdp=-1", (1, 8, 1)), ("fsdp=-1", (1, 8, 1)),
    ("model=-1,fsdp=2", (1, 2, 4))])
def test_shapes_on_eight_devices(text, shape):
    assert jax.device_count() == 8
    mesh = make_mesh(text)
    assert tuple(mesh.shape[a] for a in AXES) == shape and set(mesh.axis_types) == {AxisType.Auto}
    assert len(set(mesh.devices.flat)) == 8


def test_given_devices():
    assert make_mesh("", jax.devices()[:1]).shape == {"data": 1, "fsdp": 1, "model": 1}
    assert make_mesh("model=2", jax.devices()[2:6]).devices.flat[0] == jax.devices()[2]


@pytest.mark.parametrize("text, message", [
    ("data=3", "takes 3 devices but there are 8"), ("data=16", "takes 16 devices but there are 8"), ("data=2,fsdp=2", "takes 4 devices but there are 8"),
    ("model=3", "takes a multiple of 3 devices but there are 8"), ("data=-1,fsdp=16", "takes a multiple of 16 devices but there are 8"),
    ("data=0", "sizes are positive"), ("model=-2", "sizes are positive"), ("data=-1,fsdp=-1", "-1 .* may stand once")])
def test_a_mesh_that_does_not_fit_says_so(text, message):
    with pytest.raises(UserError, match=message) as e:
        make_mesh(text)
    assert "\n" not in str(e.value)


@dataclasses.dataclass(frozen=True)
class Tpu:
    """As mesh_utils looks at one."""

    id: int
    coords: tuple[int, ...]
    slice_index: int
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5"


def pod(slices, shape=(2, 2, 4)):
    return [Tpu(number, at[1:], at[0]) for number, at in enumerate(np.ndindex(slices, *shape))]


@pytest.mark.parametrize("slices, sizes, along", [
    (1, (4, 4, 1), [0] * 4), (2, (4, 8, 1), [0, 0, 1, 1]), (2, (2, 4, 4), [0, 1]), (2, (1, 32, 1), [0] * 16 + [1] * 16), (4, (2, 8, 4), [0, 0, 0, 0, 1, 1, 1, 1])])
def test_slices_lie_along_data_then_fsdp(slices, sizes, along):
    """jax.make_mesh knows one slice. All that differ in model alone are of one slice."""
    found = np.vectorize(lambda d: d.slice_index)(mesh := placed(sizes, pod(slices)))
    assert mesh.shape == sizes and len(set(mesh.flat)) == 16 * slices
    assert (found == found[:, :, :1]).all() and (found[:, 0, 0] if sizes[0] >= slices else found[0, :, 0]).tolist() == along


@needs_libtpu
def test_chips_to_compile_for_are_of_one_slice():
    """They do not say so."""
    assert make_mesh("data=2,model=2", topology("v5e:2x2").devices).shape == {"data": 2, "fsdp": 1, "model": 2}


def test_slices_that_the_mesh_cannot_have_are_told():
    with pytest.raises(UserError, match="data=1,fsdp=1 does not divide into 2 slices: make data a multiple of 2"):
        placed((1, 1, 32), pod(2))


def test_a_mesh_that_jax_does_not_lay_over_a_pod_is_told():
    """It splits 4 x 4 x 20 for it, and does not take that itself."""
    with pytest.raises(UserError, match="data=1,fsdp=10,model=32 over these 320 devices .*choose other sizes") as e:
        placed((1, 10, 32), pod(1, (4, 4, 20)))
    assert "\n" not in str(e.value)
