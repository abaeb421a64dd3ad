"""The loss scale of float16 (Micikevicius et al. 2018, section 3.2), which has 5 bits for the exponent: below 6e-8 a gradient is 0.

The loss is multiplied by the scale before the backward pass, gradients are divided by it, in float32, before anything looks at them. It
is halved by a step that is not finite, which changes nothing else, and doubled after STEADY finite ones in a row. Of other
types there is no scale, and loop has no such leaves.
"""
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ptmjax.types import Array, PyTree

STEADY = 2000  # steps
LEAST, MOST = 1.0, 2.0**32  # at the least a model whose own gradients are not finite is no matter of the scale
BEGIN: dict[str, float | int] = {"scale": 2.0**15, "steady": 0}  # leaves of TrainState.loop: float32, int32
PATHS = {f"loop/{name}": x for name, x in BEGIN.items()}  # in a checkpoint, which lacks them where the run was of another type


def begun(compute: jnp.dtype) -> dict[str, Array]:
    """What loop holds of it before the first step."""
    return {"scale": jnp.float32(BEGIN["scale"]), "steady": jnp.int32(BEGIN["steady"])} if compute == jnp.float16 else {}


def up(loss: Array, loop: Mapping[str, Array]) -> Array:
    return loss * loop["scale"] if "scale" in loop else loss


def down(grads: PyTree, loop: Mapping[str, Array]) -> PyTree:
    return jax.tree.map(lambda g: g / loop["scale"], grads) if "scale" in loop else grads


def told(loop: Mapping[str, Array]) -> dict[str, Array]:
    """Metrics of the step that began with it."""
    return {"scale": loop["scale"]} if "scale" in loop else {}


def blamed(loop: Mapping[str, Array]) -> Array:
    """Whether a step that is not finite counts as a fault of the run (1), and not of the scale, which goes on falling (0)."""
    return jnp.int32(1) if "scale" not in loop else (loop["scale"] <= LEAST).astype(jnp.int32)


def moved(loop: Mapping[str, Array], finite: Array) -> dict[str, Array]:
    """What the next step finds of it."""
    if "scale" not in loop:
        return {}
    steady = jnp.where(finite, loop["steady"] + 1, 0)
    factor = jnp.where(finite, jnp.where(steady == STEADY, 2.0, 1.0), 0.5)
    return {"scale": jnp.clip(loop["scale"] * factor, LEAST, MOST), "steady": steady % STEADY}
