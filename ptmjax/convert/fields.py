"""The fields of a config.json: each of its kind, and in one spelling."""
import json
import math
from collections.abc import Callable, Mapping

from ptmjax.nn.mlp import ACTIVATIONS
from ptmjax.types import UserError

THEIRS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "tanh": "tanh"}
OURS = {b: a for a, b in THEIRS.items()}
ALIASES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
Kind = Callable[[object], object]  # a field's value in one spelling; a ValueError that tells what it must be


def parsed(config: Mapping, kinds: Mapping[str, Kind], defaults: Mapping, where: str) -> dict:
    """The fields of `kinds`; one that lacks without a default, or is of another kind, is a UserError."""
    out = {}
    for name, kind in kinds.items():
        if name not in config and name not in defaults:
            raise UserError(f"{where} has no {name!r}: is it the config.json of this model?")
        x = config.get(name, defaults.get(name))
        try:
            out[name] = kind(x)
        except ValueError as e:
            raise UserError(f"{where} has {name} {json.dumps(x)}; it must be {e}") from e
    return out


def count(x: object) -> int:
    if type(x) is not int or x < 1:
        raise ValueError("a whole number of at least 1")
    return x


def number(x: object) -> float:
    if type(x) not in (int, float) or not 0 <= x < math.inf:
        raise ValueError("a number of at least 0")
    return x


def flag(x: object) -> bool:
    if type(x) is not bool:
        raise ValueError("true or false")
    return x


def only(value: object) -> Kind:
    """What transformers can do otherwise, and we cannot."""
    def kind(x: object) -> object:
        if x != value:
            raise ValueError(f"{json.dumps(value)}, other models cannot be read")
        return x

    return kind


def act(x: object) -> str:
    """transformers' first name of an activation."""
    name = ALIASES.get(x, x) if isinstance(x, str) else None
    if name not in OURS:
        raise ValueError(f"one of {', '.join(sorted([*OURS, *ALIASES]))}")
    return name


def act_name(function: Callable) -> str:
    """transformers' name of an activation of ours."""
    return THEIRS[next(name for name, f in ACTIVATIONS.items() if f is function)]
