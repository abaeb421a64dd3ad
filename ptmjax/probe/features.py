"""What a frozen encoder makes of a row of text, as one vector.

B rows, L length, D width.
"""
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ptmjax.training.build import Build
from ptmjax.types import Array, Batch, UserError, one_of

POOLS = ("mean", "first")
PREFERRED = ("model", "discriminator")  # what a fine-tuning would take of several networks


def network_of(build: Build) -> str:
    """The name of the network that is probed: the only one, or else the one of PREFERRED."""
    found = [name for name in PREFERRED if name in build.factories] or sorted(build.factories)
    if len(found) != 1:
        raise UserError(f"the run has the networks {', '.join(map(repr, found))}; a probe reads one of them, that named {PREFERRED[0]!r}")
    return found[0]


def make_features(build: Build, layer: int | None = None, pool: str = "mean") -> Callable[[dict[str, Array], Batch], Array]:
    """(params, batch) -> float32 [B, D], without dropout.

    layer: whose states, counted from 1; None: the encoder's last, behind its final norm where it has one. pool: "mean" of the states
    where weights > 0 (which the batch of a probe has at its text, not at symbols), or the "first" ([CLS]).
    """
    one_of("pool", pool, POOLS)
    name = network_of(build)

    def features(params: dict[str, Array], batch: Batch) -> Array:
        out = build.nets(params)[name].encode(batch, capture=frozenset() if layer is None else frozenset({"hidden"}))
        state = out.state if layer is None else nth([h for group in out.aux for h in group.get("hidden", ())], layer)
        if not isinstance(state, jax.Array) or state.ndim != 3:
            raise UserError(f"the states of network {name!r} are no [B, L, D]: a probe has no vector of a row to read")
        state = state.astype(jnp.float32)
        if pool == "first":
            return state[:, 0]
        w = (batch["weights"] > 0).astype(jnp.float32)[..., None]
        return (state * w).sum(1) / jnp.maximum(w.sum(1), 1)

    return jax.jit(features)


def nth(states: Sequence[Array], layer: int) -> Array:
    if not 1 <= layer <= len(states):
        raise UserError(f"layer {layer}: the encoder has {len(states)} that tell their states, counted from 1: name one of them")
    return states[layer - 1]


def over(features: Callable[[dict[str, Array], Batch], Array], params: dict[str, Array], batches: Iterable[Batch]) -> np.ndarray:
    """[N, D] of all rows of the batches; those whose weights are all 0 only fill up the last one and are left out."""
    out = [np.asarray(features(params, batch))[np.asarray(batch["weights"]).any(1)] for batch in batches]
    return np.concatenate(out)
