"""Attention: one function for every system, and the layer that projects into and out of it.

B rows, L queries, M keys, D width, H heads, K head size.
"""
import math

import jax
import jax.numpy as jnp
from flax import nnx

from ptmjax.nn import kernels
from ptmjax.nn.dropout import dropout
from ptmjax.nn.linear import Linear
from ptmjax.nn.masks import See, dense
from ptmjax.nn.param import Init
from ptmjax.nn.positions import rotate
from ptmjax.types import Array, Key, UserError, at_least, constrain, one_of

HIDDEN = -1e9  # finite, so that a row that sees nothing gives numbers; they are zeroed below
SQUARE = frozenset({"scores", "probs"})  # what capture asks for that has all queries and keys


def attention(q: Array, k: Array, v: Array, see: See | Array, *, bias: Array | None = None, rate: float = 0.0, key: Key | None = None,
              capture: frozenset[str] = frozenset(), kernel: str = kernels.AUTO) -> tuple[Array, dict[str, Array]]:
    """q [B, L, H, K] (already scaled), k and v [B, M, H, K], see of masks.py or bool [B, L, M], bias [B or 1, H, L, M] added to the scores.

    -> [B, L, H, K] and what `capture` asks for: scores (before the mask), probs (before dropout), values.
    Softmax in float32. A query that sees nothing gets 0, not an average of what it must not see. `kernel` is how it is computed, not
    what: see kernels.choose, which may raise UserError.
    """
    needs = kernels.Needs(
        q.shape[1], k.shape[1], q.shape[3], q.dtype.name, dropout=key is not None and rate > 0, capture=not capture.isdisjoint(SQUARE),
        bias=bias is not None, dense=not isinstance(see, See) or see.rest is not None)
    name = kernels.chosen(kernel, needs)
    if name == kernels.REFERENCE:
        return reference(q, k, v, dense(see), bias, rate, key, capture)
    y = kernels.KERNELS[name].call(q, k, v, see, *(() if bias is None else (bias,)))
    return jnp.where(dense(see).any(-1)[:, :, None, None], y, 0), {"values": v} if "values" in capture else {}


def reference(q: Array, k: Array, v: Array, see: Array, bias: Array | None, rate: float, key: Key | None,
              capture: frozenset[str]) -> tuple[Array, dict[str, Array]]:
    """attention() as it is written, with everything that can be asked for; see is bool [B, L, M]."""
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias
    some = see.any(-1)
    probs = softmax(scores, see[:, None])
    weigh = lambda probs, v, key: jnp.einsum("bhlm,bmhk->blhk", dropout(probs, rate, key).astype(v.dtype), v)
    y = jax.checkpoint(weigh, prevent_cse=False)(probs, v, key)  # keeps probs alone: their dropped-out copy is as large
    aux = {"scores": lambda: scores, "probs": lambda: probs * some[:, None, :, None], "values": lambda: v}
    return y * some[:, :, None, None].astype(y.dtype), {name: made() for name, made in aux.items() if name in capture}


@jax.custom_vjp
def softmax(scores: Array, see: Array) -> Array:
    """Of the last axis, where `see` (broadcast to the scores); what a hidden score is does not matter. Reverse mode alone.

    jax.nn's keeps two arrays and a mask for its gradient; this keeps the result. Scores grow with the square of the length: they are
    most of what a layer keeps."""
    return jax.nn.softmax(jnp.where(see, scores, HIDDEN))


def _made(scores: Array, see: Array) -> tuple[Array, Array]:
    y = softmax(scores, see)
    return y, y


def _taken(y: Array, dy: Array) -> tuple[Array, None]:
    return y * (dy - (y * dy).sum(-1, keepdims=True)), None


softmax.defvjp(_made, _taken)


class Attention(nnx.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2) of x [B, L, D] over memory [B, M, D].

    size is K, None for D / H. scaled: scores are divided by sqrt(K); where not (Raffel et al. 2020), the query's initial
    kernel is, so that scores begin alike and the optimizer, not the layer, sets their size.
    kernel: how attention() computes it.
    """

    def __init__(self, width: int, heads: int, *, size: int | None = None, scaled: bool = True, bias: bool = True, init: Init = 0.02,
                 kernel: str = kernels.AUTO, key: Array):
        one_of("kernel", kernel, kernels.CHOICES)
        at_least(1, width=width, heads=heads, **({} if size is None else {"size": size}))
        if size is None and width % heads:
            raise UserError(f"width {width} does not divide by {heads} heads: choose sizes that do (D and HEADS of shipped files)")
        self.heads, self.scaled, self.kernel, keys = heads, scaled, kernel, jax.random.split(key, 4)
        inner = width if size is None else heads * size
        self.query, self.key, self.value = (
            Linear(width, inner, ("embed", "heads"), bias=bias, init=init, key=k) for k in keys[:3]
        )
        self.out = Linear(inner, width, ("heads", "embed"), bias=bias, init=init, key=keys[3])
        if not scaled:
            self.query.kernel[...] = self.query.kernel[...] / math.sqrt(inner // heads)

    def __call__(self, x: Array, over: Array, see: See | Array, *, angles: Array | None = None, bias: Array | None = None,
                 rate: float = 0.0, key: Key | None = None, capture: frozenset[str] = frozenset()) -> tuple[Array, dict[str, Array]]:
        """angles [B, L, K/2] turn queries and keys (self-attention only, so L = M); the rest is as in attention()."""
        q, k, v = self.split(self.query(x)), self.split(self.key(over)), self.split(self.value(over))
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        if self.scaled:
            q = q / math.sqrt(q.shape[-1])
        y, aux = attention(q, k, v, see, bias=bias, rate=rate, key=key, capture=capture, kernel=self.kernel)
        return self.out(apart(y).reshape(*y.shape[:2], -1)), aux

    def split(self, x: Array) -> Array:
        return apart(x.reshape(*x.shape[:-1], self.heads, -1))


def apart(x: Array) -> Array:
    """x [B, L, H, K], its heads on devices of their own, each with all places."""
    return constrain(x, "batch", None, "heads", None)
