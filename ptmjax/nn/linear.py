"""The one place of a matrix product: adapters, quantisers and pruning masks have one line to change.

I inputs, O outputs.
"""
from flax import nnx

from ptmjax.nn.param import Init, param
from ptmjax.types import Array


class Linear(nnx.Module):
    """[..., I] -> [..., O]: x @ kernel + bias."""

    def __init__(self, inputs: int, outputs: int, names: tuple[str | None, str | None], *, bias: bool = True, init: Init = 0.02,
                 key: Array):
        self.kernel = param(key, (inputs, outputs), names, init)
        self.bias = param(key, (outputs,), names[1:], "zeros") if bias else None

    def __call__(self, x: Array) -> Array:
        y = x @ self.kernel[...]
        return y if self.bias is None else y + self.bias[...]
