"""Learning rates as functions of the number of steps that are done: the first step of a run has rate schedule(0).

All can be jitted, give float32, and hold their last value beyond their last step. `peak` is the greatest rate of each. Where
`steps` is None they are those of the whole run, all its stages, which the optimizer is told (`ended`).
"""
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

from ptmjax.types import Array, UserError, above_zero, at_least

Schedule = Callable[[Array], Array]


class Unended(NamedTuple):
    """A schedule that depends on the length of the run: over(steps) is it."""

    over: Callable[[int], Schedule]


def ended(schedule: Schedule | Unended, steps: int | None) -> Schedule:
    """The schedule in a run of `steps` steps; a UserError where it depends on them and they are not told (None)."""
    if not isinstance(schedule, Unended):
        return schedule
    if steps is None:
        raise UserError("this schedule ends with the run, whose steps are not told: give the schedule steps of its own")
    return schedule.over(steps)


def is_share(warmup: float) -> bool:
    """A warm-up below 1 is a share of all steps, any other a number of steps."""
    return 0 < warmup < 1


def warmup_steps(warmup: float, steps: int | None) -> int:
    """A warm-up in steps, of all `steps` (None: not needed). A UserError where it does not fit into them."""
    n = round(warmup * steps) if is_share(warmup) else round(warmup) if math.isfinite(warmup) else warmup
    if steps is not None and not 0 <= n < steps:
        raise UserError(f"a warm-up of {n} steps does not fit into {steps} steps: shorten it (WARMUP in shipped files), or give a share "
                        "of all steps, such as 0.01")
    if not 0 <= n < math.inf:
        raise UserError(f"a warm-up of {n} steps: it must be a number of steps, or below 1 a share of all")
    return n


def after_warmup(peak: float, warmup: int, then: Schedule) -> Schedule:
    """0 up to `peak` over `warmup` steps, and then `then`, which counts from there."""
    return optax.schedules.join_schedules([optax.schedules.linear_schedule(0.0, peak, max(1, warmup)), then], [warmup])


def left(steps: int) -> Schedule:
    """The share of `steps` that is still to come: exactly 0 at `steps`, and not before, for any number of them."""
    return lambda step: jnp.float32(jnp.maximum(steps - step, 0)) / steps


def linear(peak: float, warmup: float, steps: int | None = None) -> Schedule | Unended:
    """0 up to `peak` over `warmup` steps (below 1: that share of all), then straight down to 0 at `steps` (BERT, RoBERTa, ELECTRA).

    Departure from BERT's release, whose line down begins at step 0: its rate drops by warmup / steps of the peak where the
    warm-up ends.
    """
    above_zero(peak=peak)
    if steps is None:
        return Unended(functools.partial(linear, peak, warmup))
    warmup = warmup_steps(warmup, steps)
    share = left(steps - warmup)
    return after_warmup(peak, warmup, lambda step: peak * share(step))


def cosine(peak: float, warmup: float, steps: int | None = None, final: float = 0.0) -> Schedule | Unended:
    """0 up to `peak` over `warmup` steps (below 1: that share of all), then half a cosine down to peak * `final` at `steps`
    (Loshchilov and Hutter 2017, without restarts; GPT, Transformer-XL, GLM)."""
    above_zero(peak=peak)
    if not 0 <= final <= 1:
        raise UserError(f"the final share of a cosine schedule is {final}; it must lie in 0 .. 1")
    if steps is None:
        return Unended(functools.partial(cosine, peak, warmup, final=final))
    warmup = warmup_steps(warmup, steps)
    share = left(steps - warmup)  # (1 + cos(pi (1 - x))) / 2 = sin(pi x / 2)^2, which loses no digits near its end
    return after_warmup(peak, warmup, lambda step: peak * (final + (1 - final) * jnp.sin(math.pi / 2 * share(step)) ** 2))


def constant(peak: float, warmup: float = 0, steps: int | None = None) -> Schedule | Unended:
    """0 up to `peak` over `warmup` steps, which it then keeps. `steps` only gives a warm-up below 1 its meaning."""
    above_zero(peak=peak)
    if steps is None and is_share(warmup):
        return Unended(functools.partial(constant, peak, warmup))
    return after_warmup(peak, warmup_steps(warmup, steps), optax.schedules.constant_schedule(peak))


def rsqrt(peak: float = 0.01, warmup: float = 10_000, steps: int | None = None, *, rise: bool = False) -> Schedule | Unended:
    """peak * sqrt(warmup / max(step, warmup)): as it stands, T5's 1 / sqrt(max(step, 10^4)) (Raffel et al. 2020, section 3.1.2).

    rise: the warm-up goes straight up from 0 instead of standing at `peak` (Vaswani et al. 2017, equation 3; XLM, fairseq).
    That paper counts the present step from 1; here it is the steps done, so the first has rate 0. A law written as
    c / sqrt(max(step, warmup)) has peak c / sqrt(warmup). `steps` only gives a warm-up below 1 its meaning.
    """
    above_zero(peak=peak)
    if steps is None and is_share(warmup):
        return Unended(functools.partial(rsqrt, peak, warmup, rise=rise))
    warmup = warmup_steps(warmup, steps)
    at_least(1, warmup=warmup)

    def rate(step: Array) -> Array:
        step = jnp.asarray(step, jnp.float32)
        return peak * jnp.sqrt(warmup / jnp.maximum(step, warmup)) * (jnp.minimum(step / warmup, 1) if rise else 1)

    return rate
