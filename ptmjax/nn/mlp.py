"""The position-wise feed-forward layer.

D width, F hidden.
"""
import functools

import jax
from flax import nnx

from ptmjax.nn.dropout import check_rate, dropout
from ptmjax.nn.linear import Linear
from ptmjax.nn.param import Init
from ptmjax.types import Array, Key, at_least, constrain, one_of

ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # BERT's first release, transformers' "gelu"
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),  # jax's own default; GPT, google-research/bert's later code
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}
GATED = "gated_"


def activation(name: str):
    """The function called `name`; UserError for an unknown one."""
    one_of("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


class Mlp(nnx.Module):
    """[B, L, D] -> [B, L, D]: act(x wi) wo, or with "gated_gelu" and the like act(x wg) * (x wi) wo (Shazeer 2020).

    rate is that of dropout before wo.
    """

    def __init__(self, width: int, hidden: int, act: str, *, rate: float = 0.0, bias: bool = True, init: Init = 0.02, key: Array):
        at_least(1, width=width, hidden=hidden)
        check_rate(rate=rate)
        a, b, c = jax.random.split(key, 3)
        self.rate, self.act = rate, activation(act.removeprefix(GATED))
        self.wi = Linear(width, hidden, ("embed", "mlp"), bias=bias, init=init, key=a)
        self.gate = Linear(width, hidden, ("embed", "mlp"), bias=bias, init=init, key=c) if act.startswith(GATED) else None
        self.wo = Linear(hidden, width, ("mlp", "embed"), bias=bias, init=init, key=b)

    def __call__(self, x: Array, key: Key | None = None) -> Array:
        h = constrain(self.wi(x), "batch", None, "mlp")
        gate = None if self.gate is None else constrain(self.gate(x), "batch", None, "mlp")
        return jax.checkpoint(self.out, prevent_cse=False)(h, gate, key)  # keeps h: what act and dropout make of it is as large

    def out(self, h: Array, gate: Array | None, key: Key | None) -> Array:
        h = self.act(h) if gate is None else self.act(gate) * h
        return self.wo(dropout(h, self.rate, key))
