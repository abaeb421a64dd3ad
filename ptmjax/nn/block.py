"""A transformer layer, and the contract that every layer keeps.

B rows, L length, D width.
"""
import functools
from collections.abc import Callable

import jax
from flax import nnx

from ptmjax.nn.attention import Attention
from ptmjax.nn.dropout import check_rate, dropout
from ptmjax.nn.kernels import AUTO
from ptmjax.nn.mlp import Mlp
from ptmjax.nn.norm import Norm
from ptmjax.nn.param import Init
from ptmjax.types import Array, Key, PyTree, constrain, fold, one_of

PLACES = ("post", "pre")


def between(x: Array) -> Array:
    """x [B, L, D] as it lies between the parts of layers."""
    return constrain(x, "batch", "length", None)


class Layer(nnx.Module):
    """Self-attention [, cross attention], feed-forward, each with its norm: what a Block and a T5Block make of their parts.

    The contract of a block: (state, context, memory, key, capture) -> (state, memory, aux). state is any tree of [B, ...];
    context is what all layers see (see, bias, angles, encoded, ...); memory is this layer's own from segment to segment,
    or None; aux holds what `capture` asks for of hidden, scores, probs, values.
    """

    def __init__(self, attention: Attention, mlp: Mlp, cross: Attention | None, norm: Callable[[], Norm], *, pre: bool, rate: float,
                 attention_rate: float):
        check_rate(rate=rate, attention_rate=attention_rate)
        self.pre, self.rate, self.attention_rate = pre, rate, attention_rate
        self.attention, self.mlp, self.cross = attention, mlp, cross
        self.norms = nnx.Dict({name: norm() for name in ("attention", "mlp") + ("cross",) * (cross is not None)})

    def residual(self, x: Array, name: str, part: Callable[[Array], tuple[Array, dict]], key: Key | None) -> tuple[Array, dict]:
        """x plus the dropped-out part, the norm before or after; [B, L, D] and the part's aux. Only the part sees all places of a row:
        where rows share "length" out, they are gathered before it, and what it gives is summed over devices and scattered at once."""
        norm = self.norms[name]
        y, aux = part(constrain(norm(x) if self.pre else x, "batch", None, None))
        x = between(x + dropout(between(y), self.rate, fold(key, name)))
        return (x if self.pre else norm(x)), aux

    def attend(self, x: Array, context: dict[str, Array], key: Key | None, capture: frozenset[str]) -> tuple[Array, dict]:
        return self.residual(x, "attention", lambda h: self.attention(
            h, h, context["see"], angles=context.get("angles"), bias=context.get("bias"), rate=self.attention_rate,
            key=fold(key, "probs"), capture=capture), key)

    def cross_attend(self, x: Array, context: dict[str, Array], key: Key | None, capture: frozenset[str]) -> tuple[Array, dict]:
        x, aux = self.residual(x, "cross", lambda h: self.cross(
            h, context["encoded"], context["encoded_see"], rate=self.attention_rate, key=fold(key, "cross_probs"), capture=capture), key)
        return x, {f"cross_{name}": a for name, a in aux.items()}

    def __call__(self, state: Array, context: dict[str, Array], memory: PyTree, key: Key | None,
                 capture: frozenset[str]) -> tuple[Array, PyTree, dict[str, Array]]:
        x, aux = self.attend(state, context, key, capture)
        if self.cross is not None:
            x, more = self.cross_attend(x, context, key, capture)
            aux |= more
        x, _ = self.residual(x, "mlp", lambda h: (self.mlp(h, fold(key, "hidden")), {}), key)
        return x, memory, aux | ({"hidden": x} if "hidden" in capture else {})

    def init_memory(self, rows: int, reach: int | None = None) -> PyTree:
        """Zeros [rows, ...] where a block keeps memory; `reach` is how far it looks back, None its own default."""
        return None


class Block(Layer):
    """A Layer whose norm is after each sum ("post", BERT) or before each part ("pre")."""

    def __init__(self, width: int, heads: int, hidden: int, *, act: str = "gelu", norm: str = "layer", eps: float = 1e-12,
                 place: str = "post", rate: float = 0.1, attention_rate: float = 0.1, bias: bool = True, cross: bool = False,
                 init: Init = 0.02, kernel: str = AUTO, key: Array):
        one_of("place of the norm", place, PLACES)
        a, b, c, d = jax.random.split(key, 4)
        attend = functools.partial(Attention, width, heads, bias=bias, init=init, kernel=kernel)
        super().__init__(attend(key=a), Mlp(width, hidden, act, bias=bias, init=init, key=b), attend(key=c) if cross else None,
                         lambda: Norm(width, norm, eps, key=d), pre=place == "pre", rate=rate, attention_rate=attention_rate)


class T5Block(Layer):
    """T5's layer (Raffel et al. 2020, section 2.1): RMS norms before the parts, no biases, heads of any size, unscaled scores; one
    dropout rate for attention, the MLP's hidden and the sums.

    Initial laws as T5X. Three departures, all of dropout, where T5X saves random bits: it drops a channel of the MLP's hidden at
    all positions of a row at once, so too a channel of the sums, and a key of the attention for all queries; here each place has
    bits of its own, as in transformers.
    """

    def __init__(self, width: int, heads: int, size: int, hidden: int, *, act: str = "relu", eps: float = 1e-6, rate: float = 0.1,
                 cross: bool = False, kernel: str = AUTO, key: Array):
        a, b, c, d = jax.random.split(key, 4)
        attend = functools.partial(Attention, width, heads, size=size, scaled=False, bias=False, init="fan_in", kernel=kernel)
        mlp = Mlp(width, hidden, act, rate=rate, bias=False, init="fan_in_cut", key=b)
        super().__init__(attend(key=a), mlp, attend(key=c) if cross else None, lambda: Norm(width, "rms", eps, key=d), pre=True,
                         rate=rate, attention_rate=rate)


class Final(nnx.Module):
    """The norm after the last layer that "pre" blocks need (GPT-2, T5), and dropout (T5), itself a block: groups
    [(Block, 12), (Final, 1)]."""

    def __init__(self, width: int, *, norm: str = "layer", eps: float = 1e-12, rate: float = 0.0, key: Array):
        check_rate(rate=rate)
        self.norm, self.rate = Norm(width, norm, eps, key=key), rate

    def __call__(self, state: Array, context: dict[str, Array], memory: PyTree, key: Key | None,
                 capture: frozenset[str]) -> tuple[Array, PyTree, dict[str, Array]]:
        return jax.tree.map(lambda x: dropout(self.norm(x), self.rate, fold(key, "final")), state), memory, {}

    def init_memory(self, rows: int, reach: int | None = None) -> PyTree:
        return None
