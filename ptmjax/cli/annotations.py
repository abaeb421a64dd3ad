"""Whether a value of a gin file fits the annotation of the argument it is bound to."""
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from gin.config import ConfigurableReference as Reference

_PLAIN = (bool, int, float, str, bytes)
_SEQUENCES = (list, tuple, set, frozenset, Sequence, Collection, Iterable, Set)
_MAPPINGS = (dict, Mapping)


def annotations(function: Any) -> dict[str, Any]:
    """name -> annotation.  Those of other packages that do not evaluate (names known to type checkers only) are not checked."""
    try:
        return typing.get_type_hints(function, include_extras=False)
    except (NameError, TypeError, AttributeError):
        if getattr(function, "__module__", "").partition(".")[0] == "ptmjax":
            raise
        return {}


def fits(value: Any, wanted: Any) -> bool:
    """value as gin read it (macros replaced); int passes for float, bool for nothing else, list for tuple and any sequence."""
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in args)
    if isinstance(value, Reference):
        return _reference_fits(value, origin or wanted)
    if wanted in (None, type(None)):
        return value is None
    if wanted is float:
        return type(value) in (int, float)
    if wanted in _PLAIN:
        return type(value) is wanted
    if (origin or wanted) in _SEQUENCES:
        return isinstance(value, list | tuple) and _elements_fit(value, origin, args)
    if (origin or wanted) in _MAPPINGS:
        return isinstance(value, dict) and (not args or all(fits(v, args[1]) for v in value.values()))
    if (origin or wanted) in (type, Callable):
        return False  # only a reference can be one
    return not _is_class(wanted) or isinstance(value, wanted)


def _elements_fit(value: list | tuple, origin: Any, args: tuple) -> bool:
    if origin is tuple and args and args[-1] is not Ellipsis:
        return len(value) == len(args) and all(map(fits, value, args))
    return not args or all(fits(v, args[0]) for v in value)


def _reference_fits(reference: Reference, wanted: Any) -> bool:
    """@X() of a class is an instance of it, of a function may be anything; @X is something to call."""
    made = reference.configurable.wrapped
    if not reference.evaluate:
        return wanted in (type, Callable) or not (wanted in (None, *_PLAIN) or _is_class(wanted) and wanted is not object)
    return not inspect.isclass(made) or not _is_class(wanted) or issubclass(made, wanted)


def _is_class(wanted: Any) -> bool:
    """A class of which isinstance says the truth."""
    return inspect.isclass(wanted) and wanted not in (Any, type) and not getattr(wanted, "_is_protocol", False)


def shown(wanted: Any) -> str:
    """An annotation as a reader writes it."""
    if inspect.isclass(wanted) and not typing.get_args(wanted):
        return wanted.__name__
    return str(wanted).replace("typing.", "").replace("collections.abc.", "")


def finite(value: Any) -> bool:
    """No infinity or NaN anywhere in a value: a saved configuration has no way to write them."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)
