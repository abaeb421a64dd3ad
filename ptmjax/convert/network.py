"""What decides what a network computes, as a flat table by which two networks are compared."""
import inspect
from collections.abc import Iterator

import jax
from flax import nnx

from ptmjax.nn.mlp import ACTIVATIONS
from ptmjax.training.build import Build
from ptmjax.types import UserError

WITHOUT_MEANING = {"rate", "attention_rate", "remat", "loop", "axis", "kernel",  # dropout, memory, placement, speed: not what is computed
                   "shared"}  # shapes tell


def need(true: bool, what: str) -> None:
    if not true:
        raise UserError(f"the published layout has no place for this network: {what}")


def shapes(build: Build) -> nnx.Dict:
    """The networks, without numbers in their parameters."""
    return nnx.eval_shape(lambda: build.make(jax.random.key(0)))


def need_equal(ours: Build, layout: Build, net: str) -> None:
    """A UserError where the network `net` does not compute what the layout's does: the first place that differs."""
    a, b = facts(ours, net), facts(layout, net)
    for path in sorted(a.keys() | b.keys()):
        need(a.get(path) == b.get(path), f"{path} is {a.get(path, 'nothing')}, there it is {b.get(path, 'nothing')}")


def facts(build: Build, net: str) -> dict[str, str]:
    """path -> a class, a function, a number, or a parameter's shape and owner; what is None is left out."""
    return dict(static(shapes(build)[net], net)) | dict(parameters(build, net))


def static(node: object, path: str) -> Iterator[tuple[str, str]]:
    """All that is no parameter."""
    if isinstance(node, nnx.Module):
        yield path, named(type(node))
        for name, value in vars(node).items():
            if not name.startswith("_") and name not in WITHOUT_MEANING:
                yield from static(value, f"{path}/{name}")
    elif callable(node) and not isinstance(node, nnx.Variable):
        yield path, next((name for name, function in ACTIVATIONS.items() if function is node), None) or named(inspect.unwrap(node))
    elif not isinstance(node, nnx.Variable | None):
        yield path, repr(node)


def named(thing: object) -> str:
    return f"{thing.__module__}.{getattr(thing, '__qualname__', repr(thing))}"


def parameters(build: Build, net: str) -> Iterator[tuple[str, str]]:
    """Shapes are without the padding of a vocabulary; the owner, of a parameter that is tied, is the first path under which it stands."""
    first = {}
    for path in build.keys:
        if path.startswith(f"{net}/"):
            owner = build.owner(path)
            leaf = build.leaves[owner]
            shape, owner = str(list(leaf.sizes)), first.setdefault(owner, path)
            yield path, shape if owner == path else f"{shape} of {owner}"
