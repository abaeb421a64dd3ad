"""What the families share: activations under transformers' names, and what a layout has no place for."""
import inspect
from collections.abc import Callable

from ptmjax.nn.mlp import ACTIVATIONS
from ptmjax.types import UserError

THEIRS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "tanh": "tanh"}
ALIASES = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "silu"}


def act_of(theirs: str) -> str:
    """Our name of an activation of config.json."""
    ours = ALIASES.get(theirs) or next((a for a, b in THEIRS.items() if b == theirs), None)
    if ours is None:
        raise UserError(f"config.json has activation {theirs!r}; known are {', '.join(sorted([*THEIRS.values(), *ALIASES]))}")
    return ours


def act_name(act: Callable) -> str:
    """transformers' name of an activation of ours."""
    return THEIRS[next(name for name, function in ACTIVATIONS.items() if function is act)]


def is_mask(see: Callable, which: Callable) -> bool:
    """Whether a mask is `which`, also where a configuration has wrapped it."""
    return inspect.unwrap(see) is which


def need(true: bool, what: str) -> None:
    if not true:
        raise UserError(f"the published layout has no place for this network: {what}")
