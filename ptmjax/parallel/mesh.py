"""The device mesh: data (rows), fsdp (rows and parameters), model (tensor parallel)."""
import math
import re

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from ptmjax.types import UserError, short

AXES = ("data", "fsdp", "model")


def parse(text: str) -> dict[str, int]:
    """"data=4,model=2" -> sizes; -1 once for what is left. A fault is a UserError."""
    sizes = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, size = part.partition("=")
        if name not in AXES or not re.fullmatch("-?[0-9]{1,9}", size) or name in sizes:
            raise UserError(f"mesh {short(text)!r}: {short(part)!r} is not one of {', '.join(f'{a}=N' for a in AXES)}, each at most once")
        sizes[name] = int(size)
    return sizes


def make_mesh(text: str = "", devices: list | None = None) -> Mesh:
    """The mesh of `text`, for example "data=-1,model=2"; axes not named are 1, but data takes what is left if nothing else does.

    Auto axes: sharding is propagated by the compiler from what `constrain` says (Explicit axes refuse the embedding gather).
    """
    devices = jax.devices() if devices is None else devices
    asked = parse(text)
    sizes = {"data": 1 if -1 in asked.values() else -1, "fsdp": 1, "model": 1} | asked
    free = [a for a in AXES if sizes[a] == -1]
    known = math.prod(s for s in sizes.values() if s != -1)
    if any(s == 0 or s < -1 for s in sizes.values()) or len(free) > 1:
        raise UserError(f"mesh {short(text)!r}: sizes are positive, and -1 (what is left) may stand once")
    if free and len(devices) % known == 0:
        sizes[free[0]] = len(devices) // known
    if math.prod(sizes.values()) != len(devices):
        raise UserError(f"mesh {short(text)!r} takes {'a multiple of ' if free else ''}{known} devices but there are {len(devices)}: "
                        "make the product of its axes equal the number of devices")
    return Mesh(placed(tuple(sizes[a] for a in AXES), devices), AXES, axis_types=(AxisType.Auto,) * 3)


def placed(sizes: tuple[int, ...], devices: list) -> np.ndarray:
    """The devices in the order of the mesh. Slices of TPUs, between which the network is slow, lie along data, then fsdp, never model.

    Raises:
        UserError: the mesh does not divide into slices, or jax does not lay it over such a pod.
    """
    # Chips that are not there (topology.py) have no slice_index where they are of one slice.
    slices = len({getattr(d, "slice_index", 0) for d in devices}) if devices[0].platform == "tpu" else 1
    data = math.gcd(slices, sizes[0])
    if sizes[1] % (slices // data):
        raise UserError(f"the mesh data={sizes[0]},fsdp={sizes[1]} does not divide into {slices} slices: make data a multiple of {slices}")
    outer = (data, slices // data, 1)
    inner = tuple(size // n for size, n in zip(sizes, outer))
    # Split where it must be: jax.make_mesh refuses an axis that a pod's torus has only in part, such as 4 of v5p's 8 x 8 x 8.
    try:
        if slices == 1:
            return mesh_utils.create_device_mesh(inner, devices, allow_split_physical_axes=True)
        return mesh_utils.create_hybrid_device_mesh(inner, outer, devices, allow_split_physical_axes=True)
    except (TypeError, ValueError) as e:  # it splits an axis such as v5p's 20 in a way that it does not take itself
        sizes = ",".join(f"{axis}={size}" for axis, size in zip(AXES, sizes))
        raise UserError(f"jax does not find how to lay the mesh {sizes} over these {len(devices)} devices ({str(e)[:120]}): "
                        "choose other sizes") from e
