"""Parameters: one place that makes them, with logical axis names and an initial law."""
import math

import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.types import INT32, Array, UserError, at_least, at_most

nnx.use_eager_sharding(False)  # names stay metadata until a mesh is chosen; nnx would otherwise demand one here

Init = float | str  # a standard deviation (normal cut at two of them, as BERT), or one of LAWS
LAWS = ("fan_in", "fan_in_cut", "glorot", "normal", "ones", "zeros")
CUT = 0.87962566  # the standard deviation of a normal cut at two of its own
WIDEST = 1000.0  # a standard deviation beyond this is a slip: the first product would overflow sooner or later
VOCAB_MULTIPLE = 128  # vocabularies are padded to this, never to the mesh: checkpoints do not depend on it


def draw(key: Array, shape: tuple[int, ...], init: Init, fan_in: int | None = None) -> Array:
    """An initial array; fan_in defaults to the first axis.

    "normal" has deviation 1; "fan_in" and "fan_in_cut" (cut at two of its deviations) fan_in^-.5; "glorot" is uniform with the
    variance 2 / (first axis + last axis) (Glorot and Bengio 2010).
    """
    if init == "zeros":
        return jnp.zeros(shape)
    if init == "ones":
        return jnp.ones(shape)
    if init == "normal":
        return jax.random.normal(key, shape)
    if init == "fan_in":
        return jax.random.normal(key, shape) * (fan_in or shape[0]) ** -0.5
    if init == "fan_in_cut":
        return jax.random.truncated_normal(key, -2, 2, shape) * (fan_in or shape[0]) ** -0.5 / CUT
    if init == "glorot":
        return jax.random.uniform(key, shape, minval=-1) * math.sqrt(6 / (shape[0] + shape[-1]))
    if isinstance(init, str):
        raise UserError(f"init is {init!r}; it may be a standard deviation or one of {', '.join(map(repr, LAWS))}")
    at_least(0, init=init)
    at_most(WIDEST, init=init)
    return init * jax.random.truncated_normal(key, -2, 2, shape)


def param(key: Array, shape: tuple[int, ...], names: tuple[str | None, ...], init: Init, real: int | None = None,
          fan_in: int | None = None) -> nnx.Param:
    """A parameter whose axes are called `names`; past the first `real` entries of its first axis lies padding, never counted."""
    if len(names) != len(shape):
        raise ValueError(f"{len(names)} axis names {names} for a parameter of shape {shape}")
    if not 1 <= min(shape, default=1) <= max(shape, default=1) <= INT32:
        raise UserError(f"a parameter with axes {names} is of shape {shape}: every size must be at least 1 and at most {INT32}")
    unused = 0 if real is None else (shape[0] - real) * math.prod(shape[1:])
    return nnx.Param(draw(key, shape, init, fan_in), out_sharding=names, unused=unused)


def padded(size: int) -> int:
    """The number of rows of a table for `size` entries of a vocabulary."""
    return math.ceil(size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def rows(table: Array, where: Array) -> Array:
    """table [V, ...] at `where` [...], in its type. The table's gradient, for a frequent row a sum over many positions, runs in
    float32: in bfloat16 it stops growing after some hundred terms."""
    return table.astype(jnp.float32)[where].astype(table.dtype)
