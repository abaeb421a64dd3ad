"""The one place of a matrix product: adapters, quantisers and pruning masks have one line to change.

I inputs, O outputs.
"""
import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.nn.param import Init, param
from ptmjax.types import Array


def product(x: Array, kernel: Array, dtype: jnp.dtype | None = None) -> Array:
    """[..., I] x [I, O] -> [..., O], accumulated in `dtype` (None: as x).

    As one matrix: XLA on a CPU transposes and copies a batched operand for the kernel's gradient, which doubled its time.
    """
    flat = jnp.dot(x.reshape(-1, x.shape[-1]), kernel, preferred_element_type=dtype)
    return flat.reshape(*x.shape[:-1], kernel.shape[1])


@jax.custom_vjp
def add(x: Array, bias: Array) -> Array:
    """x [..., O] + bias [O], in the type of x. The bias' gradient, a sum over all rows and positions, runs in float32: in bfloat16
    it stops growing after some hundred terms. It is a product with ones: XLA on a CPU sums over leading axes ten times as long. Reverse
    mode alone."""
    return (x.astype(jnp.float32) + bias).astype(x.dtype)


def _added(x: Array, bias: Array) -> tuple[Array, Array]:
    return add(x, bias), bias[:0]  # of which the type is needed


def _parted(like: Array, dy: Array) -> tuple[Array, Array]:
    flat = dy.reshape(-1, dy.shape[-1]).astype(jnp.float32)
    return dy, jnp.dot(jnp.ones(len(flat)), flat, precision=jax.lax.Precision.HIGHEST).astype(like.dtype)


add.defvjp(_added, _parted)


class Linear(nnx.Module):
    """[..., I] -> [..., O]: x @ kernel + bias."""

    def __init__(self, inputs: int, outputs: int, names: tuple[str | None, str | None], *, bias: bool = True, init: Init = 0.02,
                 key: Array):
        self.kernel = param(key, (inputs, outputs), names, init)
        self.bias = param(key, (outputs,), names[1:], "zeros") if bias else None

    def __call__(self, x: Array) -> Array:
        y = product(x, self.kernel[...])
        return y if self.bias is None else add(y, self.bias[...])
