"""Devices of machines that are not at hand, to compile for: pods of TPU chips, and any number of CPUs.

libtpu, the compiler, needs no TPU: `pip install "ptmjax[tpu]"` brings the one that goes with jax.
"""
import contextlib
import math
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from ptmjax.parallel import libtpu
from ptmjax.parallel.chips import CHIPS, Chip
from ptmjax.types import UserError, short

CPU = "cpu"
CPUS = 1024


class Topology(NamedTuple):
    name: str
    devices: list[jax.Device]  # of which only their places are real
    chip: Chip | None  # None for CPUs


def example(kind: str) -> str:
    return f"{kind}:{'8' if kind == CPU else '16x16' if CHIPS[kind].axes == 2 else '8x8x8'}"


FORMS = [example(kind) for kind in (*CHIPS, CPU)]


def topology(name: str) -> Topology:
    """Of KIND:SIZExSIZE..., such as v5e:16x16, or cpu:N. To be called before anything asks jax for its devices.

    Raises:
        UserError: an unknown kind, a size that there is not, or no libtpu.
    """
    found = re.fullmatch(r"(\w+):([0-9]{1,9}(?:x[0-9]{1,9})*)", name)
    if not found or found[1] not in (*CHIPS, CPU):
        raise UserError(f"--topology={short(name)} is not known: write {', '.join(FORMS)}, with sizes of your own")
    kind, sizes = found[1], [int(size) for size in found[2].split("x")]
    axes = 1 if kind == CPU else CHIPS[kind].axes
    if len(sizes) != axes or 0 in sizes:
        raise UserError(f"--topology={short(name)}: {kind} has {axes} {'axis' if axes == 1 else 'axes'}, each of at least 1: "
                        f"write {example(kind)}")
    jax.config.update("jax_platforms", CPU)  # what is computed on the way is small, and a TPU or GPU may be another's
    return Topology(name, cpus(name, sizes[0]), None) if kind == CPU else Topology(name, pod(name, kind, math.prod(sizes)), CHIPS[kind])


def cpus(name: str, count: int) -> list[jax.Device]:
    """That many devices of this machine's CPU; of a process in which jax has begun, some of those that it has."""
    if count > CPUS:
        raise UserError(f"--topology={name}: each of these devices takes a thread and memory: ask for at most {CPUS}")
    with contextlib.suppress(RuntimeError):  # it has
        jax.config.update("jax_num_cpu_devices", count)
    found = jax.devices(CPU)
    if len(found) < count:
        raise UserError(f"--topology={name}: jax has begun with {len(found)} CPU devices in this process: ask for at most these")
    return found[:count]


def pod(name: str, kind: str, chips: int) -> list[jax.Device]:
    """One device a chip: v4's two cores are asked to act as one, as those of v5p do by themselves; those of tpu7x cannot."""
    if chips > CHIPS[kind].pod:
        raise UserError(f"--topology={name} has {chips} chips, a pod of {kind} {CHIPS[kind].pod}: ask for at most these")
    libtpu.alone()
    if CHIPS[kind].devices > 1:
        libtpu.deep()
    more = ({"chip_config_name": "megacore"} if kind == "v4" else {}) | ({"chips_per_host_bounds": (1, 1, 1)} if chips == 1 else {})
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **more).devices
    except jax.errors.JaxRuntimeError as e:
        raise UserError(f"--topology={name}: libtpu refuses it ({str(e).splitlines()[0][:200]}): give sizes of a pod, "
                        f"such as {example(kind)}") from e
    except RuntimeError as e:
        if "not installed" not in str(e):
            raise
        raise UserError(f"--topology={name} needs libtpu, the TPU's compiler, which runs on any Linux machine: "
                        "pip install 'ptmjax[tpu]'") from e
    if len(found) != chips * CHIPS[kind].devices:
        raise ValueError(f"{name} has {chips} chips, libtpu gave {len(found)} devices")
    return found
