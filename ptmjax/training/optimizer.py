"""Optimizers over the flat dict of parameters, with groups by path."""
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ptmjax.training.build import matching
from ptmjax.types import Array, UserError

Schedule = Callable[[Array], Array]


def linear(peak: float, warmup: float, steps: int) -> Schedule:
    """0 up to `peak` over `warmup` steps (below 1: that share of all), then straight down to 0 at `steps` (BERT, RoBERTa)."""
    warmup = round(warmup * steps) if 0 < warmup < 1 else round(warmup)
    if not 0 <= warmup < steps:
        raise UserError(f"a warm-up of {warmup} steps does not fit into {steps} steps")
    return optax.schedules.join_schedules(
        [optax.schedules.linear_schedule(0.0, peak, max(1, warmup)), optax.schedules.linear_schedule(peak, 0.0, steps - warmup)], [warmup])


def scale_by_rate(schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    """Updates times -schedule(step), of the step that make_step passes: no count of its own, which a new stage would begin
    anew and a skipped step leave behind."""
    def update(updates, state, params=None, *, step, **_):
        return jax.tree.map(lambda u: -schedule(step) * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


class Group(NamedTuple):
    """Parameters whose path matches `pattern` (shell style): their rate is multiplied by `rate`, their decay is `decay`."""

    pattern: str
    rate: float = 1.0
    decay: float | None = None


def decays(name: str) -> bool:
    """Norms and biases are not decayed."""
    return name.rsplit("/", 1)[-1] not in ("bias", "scale")


class AdamW:
    """Adam with bias correction and decoupled decay (Loshchilov and Hutter 2019), after clipping the global mean gradient.

    Departure from BERT's release: that left the bias correction out. clip None: no clipping. The last group that matches
    a parameter wins; a group that matches none is a UserError.
    """

    def __init__(self, schedule: Schedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, decay: float = 0.01,
                 clip: float | None = 1.0, groups: Sequence[Group] = ()):
        self.schedule, self.b1, self.b2, self.eps, self.decay, self.clip, self.groups = schedule, b1, b2, eps, decay, clip, tuple(groups)

    def transform(self, names: Iterable[str]) -> optax.GradientTransformation:
        """The optax transformation for the trainable parameters `names`."""
        names = list(names)
        for group in self.groups:
            matching(group.pattern, names, "optimizer group")
        rate, decay = dict.fromkeys(names, 1.0), {name: self.decay if decays(name) else 0.0 for name in names}
        for group in self.groups:
            for name in fnmatch.filter(names, group.pattern):
                rate[name] = group.rate
                decay[name] = decay[name] if group.decay is None else group.decay

        def finish(updates, params):
            return {name: (u + decay[name] * params[name]) * rate[name] for name, u in updates.items()}

        return optax.chain(
            optax.identity() if self.clip is None else optax.clip_by_global_norm(self.clip),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.stateless(finish),
            scale_by_rate(self.schedule),
        )

    def rate(self, step: int) -> float:
        """The learning rate of the step that follows `step` steps."""
        return float(self.schedule(jnp.int32(step)))
