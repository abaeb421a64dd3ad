"""Floating-point operations of a traced function's matrix products. XLA's own count takes the body of a scan once."""
import math
from collections.abc import Iterator

from jax.extend import core


def flops(jaxpr: core.Jaxpr) -> int:
    """2 for a multiplication and an addition, on all devices together; of a cond's dearest branch. The body of a while counts once:
    how often it runs is not known. Elementwise work, which a step is short of, does not count."""
    return sum(map(_of_one, jaxpr.eqns))


def _of_one(eqn: core.JaxprEqn) -> int:
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        return 2 * eqn.outvars[0].aval.size * math.prod(left[i] for i in contracted)
    if name == "conv_general_dilated":
        kernel, about = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
        return 2 * eqn.outvars[0].aval.size * math.prod(kernel) // kernel[about.rhs_spec[0]]
    inner = list(map(flops, _inside(eqn)))
    if name == "cond":
        return max(inner)
    return sum(inner) * _times(eqn)


def _times(eqn: core.JaxprEqn) -> int:
    """How often what is inside runs: steps of a scan, places of a kernel's grid, devices of a shard_map, which sees one device's part."""
    about = eqn.params
    match eqn.primitive.name:
        case "scan":
            return about["length"]
        case "pallas_call":
            return math.prod(about["grid_mapping"].grid)
        case "shard_map":
            return math.prod(about["mesh"].shape[axis] for axis in about["newly_manual_axes"])
    return 1


def _inside(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one
