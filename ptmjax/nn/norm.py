"""Normalisation of the last axis, in float32 whatever the compute type."""
import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.nn.param import param
from ptmjax.types import Array, above_zero, at_least, one_of

KINDS = ("layer", "rms")


class Norm(nnx.Module):
    """[..., D] -> [..., D].

    "layer": (x - mean) / sqrt(var + eps) * scale + bias (Ba et al. 2016). "rms": x / sqrt(mean x^2 + eps) * scale
    (Zhang and Sennrich 2019), as T5. eps has no common default (BERT 1e-12, RoBERTa 1e-5, T5 1e-6): say it.
    """

    def __init__(self, width: int, kind: str, eps: float, *, key: Array):
        one_of("norm", kind, KINDS)
        at_least(1, width=width)
        above_zero(eps=eps)
        self.eps = eps
        self.scale = param(key, (width,), ("norm",), "ones")
        self.bias = param(key, (width,), ("norm",), "zeros") if kind == "layer" else None

    def __call__(self, x: Array) -> Array:
        y = x.astype(jnp.float32)
        if self.bias is not None:
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.eps) * self.scale[...]
        return (y if self.bias is None else y + self.bias[...]).astype(x.dtype)
