"""Optimizers over the flat dict of parameters, with groups by path.

A statistic of one parameter (a factored moment, a norm) is taken per layer where the leaf is a stack of layers, and never
counts the padding of a vocabulary. N layers of a stack, A x B a matrix of one of them.
"""
import fnmatch
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ptmjax.training.build import Leaf, matching
from ptmjax.training.schedules import Schedule, Unended, ended
from ptmjax.types import Array, UserError, above_zero, at_least

Leaves = Mapping[str, Leaf]  # of the trainable parameters, by path


# ------------------------------------------------------------------ what all share
class Group(NamedTuple):
    """Parameters whose path matches `pattern` (shell style): their rate is multiplied by `rate`, their decay is `decay`."""

    pattern: str
    rate: float = 1.0
    decay: float | None = None


def decays(name: str) -> bool:
    """Norms and biases are not decayed."""
    return name.rsplit("/", 1)[-1] not in ("bias", "scale")


class Shared(NamedTuple):
    """What surrounds the direction of every optimizer: the clip before it; decay, groups and rate after it.

    clip: the greatest norm of the whole mean gradient, None for no clipping. The last group that matches a parameter wins
    what it sets; a group that matches none is a UserError.
    """

    schedule: Schedule | Unended
    decay: float
    clip: float | None
    groups: tuple[Group, ...]

    @classmethod
    def checked(cls, schedule: Schedule | Unended, decay: float, clip: float | None, groups: Sequence[Group]) -> "Shared":
        at_least(0, decay=decay)
        if clip is not None:
            above_zero(clip=clip)
        for group in groups:
            given = {"rate": group.rate} | ({} if group.decay is None else {"decay": group.decay})
            at_least(0, **{f"the {name} of optimizer group {group.pattern!r}": value for name, value in given.items()})
        return cls(schedule, decay, clip, tuple(groups))

    def around(self, leaves: Leaves, steps: int | None, direction: optax.GradientTransformation,
               adapted: optax.GradientTransformation | None = None) -> optax.GradientTransformation:
        """-rate(step) * factor * adapted(direction(clipped gradient) + decay * parameter)."""
        for group in self.groups:
            matching(group.pattern, leaves, "optimizer group")
        factor, decay = dict.fromkeys(leaves, 1.0), {name: self.decay if decays(name) else 0.0 for name in leaves}
        for group in self.groups:
            for name in fnmatch.filter(leaves, group.pattern):
                factor[name] = group.rate
                decay[name] = decay[name] if group.decay is None else group.decay
        return optax.chain(
            optax.identity() if self.clip is None else optax.clip_by_global_norm(self.clip),
            direction,
            optax.stateless(lambda updates, params: {name: u + decay[name] * params[name] for name, u in updates.items()}),
            optax.identity() if adapted is None else adapted,
            scale_by_rate(ended(self.schedule, steps), factor),
        )

    def rate(self, step: int, steps: int | None) -> float:
        return float(ended(self.schedule, steps)(jnp.int32(step)))


def scale_by_rate(schedule: Schedule, factor: Mapping[str, float]) -> optax.GradientTransformationExtraArgs:
    """Updates times -schedule(step) * factor, of the step that make_step passes: no count of its own, which a new stage
    would begin anew and a skipped step leave behind."""
    def update(updates, state, params=None, *, step, **_):
        rate = schedule(step)
        return {name: -rate * (factor[name] * u) for name, u in updates.items()}, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def mean(leaf: Leaf, x: Array, *axes: int) -> Array:
    """The mean over `axes` (default: all but the layers) without the padding of a vocabulary, kept as axes of 1; x has the
    parameter's rank."""
    axes = tuple(a % x.ndim for a in axes) or tuple(range(leaf.lead, x.ndim))
    if not leaf.unused or leaf.lead not in axes:
        return x.mean(axes, keepdims=True)
    row = jnp.arange(x.shape[leaf.lead]).reshape(-1, *[1] * (x.ndim - leaf.lead - 1))  # a slice would gather a sharded table
    return x.mean(axes, keepdims=True, where=row < leaf.sizes[leaf.lead])


def rms(leaf: Leaf, x: Array) -> Array:
    return jnp.sqrt(mean(leaf, x * x))


# ------------------------------------------------------------------ Adam
def scale_by_moments(b1: float, b2: float, eps: float, correct: bool) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) of the moving averages m of the gradient and v of its square; `correct`: their bias towards the
    zeros that they begin with is taken out (Kingma and Ba 2015)."""
    above_zero(eps=eps)
    for name, b in {"b1": b1, "b2": b2}.items():
        if not 0 <= b < 1:
            raise UserError(f"{name} is {b}; it must be at least 0 and below 1")
    if correct:
        return optax.scale_by_adam(b1, b2, eps)

    def update(updates, state, params=None):
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, updates, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, updates, state.nu)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), optax.ScaleByAdamState(state.count + 1, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


class AdamW:
    """Adam with decoupled decay (Loshchilov and Hutter 2019), after clipping the global mean gradient.

    correct False leaves the bias correction out, as the releases of BERT and ELECTRA did: their first steps are about
    (1 - b1) / sqrt(1 - b2) = 3 times as long. clip None: no clipping. Of several groups that match a parameter the last
    wins. Every number is elementwise: neither layers nor the padding of a vocabulary matter (that only decays).
    """

    def __init__(self, schedule: Schedule | Unended, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, decay: float = 0.01,
                 clip: float | None = 1.0, groups: Sequence[Group] = (), correct: bool = True):
        self.shared = Shared.checked(schedule, decay, clip, groups)
        self.direction = scale_by_moments(b1, b2, eps, correct)

    def transform(self, leaves: Leaves, steps: int | None = None) -> optax.GradientTransformation:
        """The optax transformation for the trainable parameters `leaves` in a run of `steps` steps."""
        return self.shared.around(leaves, steps, self.direction)

    def rate(self, step: int, steps: int | None = None) -> float:
        """The learning rate of the step that follows `step` of the run's `steps` steps."""
        return self.shared.rate(step, steps)


# ------------------------------------------------------------------ LAMB
def scale_by_trust(leaves: Leaves) -> optax.GradientTransformation:
    """Updates times |parameter| / |update|, a ratio for every layer's matrix or table, 1 where either norm is 0; norms and
    biases are left as they are. optax.scale_by_trust_ratio takes one ratio of a whole stack."""
    def one(name: str, update: Array, param: Array) -> Array:
        if not decays(name):
            return update
        p, u = rms(leaves[name], param), rms(leaves[name], update)  # of equally many, so their ratio is that of the norms
        none = (p == 0) | (u == 0)
        return update * jnp.where(none, 1, p / jnp.where(none, 1, u))

    return optax.stateless(lambda updates, params: {name: one(name, u, params[name]) for name, u in updates.items()})


class Lamb:
    """LAMB (You et al. 2020, algorithm 2, phi the identity): Adam's direction plus decay, scaled by the trust ratio of each layer.

    Norms and biases have neither decay nor ratio. correct False leaves the bias correction out, as the release of ALBERT
    did. clip and groups as AdamW.
    """

    def __init__(self, schedule: Schedule | Unended, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, decay: float = 0.01,
                 clip: float | None = 1.0, groups: Sequence[Group] = (), correct: bool = True):
        self.shared = Shared.checked(schedule, decay, clip, groups)
        self.direction = scale_by_moments(b1, b2, eps, correct)

    def transform(self, leaves: Leaves, steps: int | None = None) -> optax.GradientTransformation:
        """The optax transformation for the trainable parameters `leaves` in a run of `steps` steps."""
        return self.shared.around(leaves, steps, self.direction, scale_by_trust(leaves))

    def rate(self, step: int, steps: int | None = None) -> float:
        """The learning rate of the step that follows `step` of the run's `steps` steps."""
        return self.shared.rate(step, steps)


# ------------------------------------------------------------------ Adafactor
class Factored(NamedTuple):
    """Moving averages of squared gradients: whole [N, A, B], or the means over columns [N, A, 1] and over rows [N, 1, B].

    Every leaf has its parameter's rank, so that it can lie as the parameter does along the axes that it keeps.
    """

    count: Array  # () int32: steps that these averages have seen; their weights depend on it
    whole: dict[str, Array]
    rows: dict[str, Array]
    columns: dict[str, Array]


def scale_by_factored(leaves: Leaves, power: float, smallest: int, eps: float, threshold: float) -> optax.GradientTransformation:
    """Gradients over the root of their factored second moment, each layer's update clipped to an RMS of `threshold`.

    optax.scale_by_factored_rms factors the two greatest axes, of which the layers may be one, and its clip takes a whole stack.
    """
    factored = {name for name, leaf in leaves.items() if len(leaf.sizes) - leaf.lead >= 2 and min(leaf.sizes[-2:]) >= smallest}

    def init(params):
        whole = {name: jnp.zeros(x.shape) for name, x in params.items() if name not in factored}
        rows = {name: jnp.zeros((*x.shape[:-1], 1)) for name, x in params.items() if name in factored}
        columns = {name: jnp.zeros((*x.shape[:-2], 1, x.shape[-1])) for name, x in params.items() if name in factored}
        return Factored(jnp.int32(0), whole, rows, columns)

    def update(updates, state, params=None):
        count = state.count + 1
        keep = 1 - count.astype(jnp.float32) ** -power
        mix = lambda old, new: keep * old + (1 - keep) * new
        square = {name: g * g + eps for name, g in updates.items()}
        whole = {name: mix(v, square[name]) for name, v in state.whole.items()}
        rows = {name: mix(v, mean(leaves[name], square[name], -1)) for name, v in state.rows.items()}
        columns = {name: mix(v, mean(leaves[name], square[name], -2)) for name, v in state.columns.items()}

        def one(name: str, g: Array) -> Array:
            if name in whole:
                u = g * jax.lax.rsqrt(whole[name])
            else:  # in this order, and with no quotient of moments, nothing overflows where a row has had no gradient (0 * inf)
                across = jnp.sqrt(mean(leaves[name], rows[name], -2)) * jax.lax.rsqrt(columns[name])
                u = g * jax.lax.rsqrt(rows[name]) * across
            return u / jnp.maximum(1, rms(leaves[name], u) / threshold)

        return {name: one(name, g) for name, g in updates.items()}, Factored(count, whole, rows, columns)

    return optax.GradientTransformation(init, update)


def scale_by_size(leaves: Leaves, least: float) -> optax.GradientTransformation:
    """Updates times the RMS of their parameter, of every layer its own, `least` where that is smaller."""
    return optax.stateless(lambda updates, params: {
        name: u * jnp.maximum(least, rms(leaves[name], params[name])) for name, u in updates.items()})


class Adafactor:
    """Adafactor as T5 used it (Shazeer and Stern 2018, algorithms 4 and 5): no first moment, second moments in factored form
    that decay by 1 - t^-power, clipped updates, rates relative to the size of the parameter.

    A matrix is factored over its last two axes where neither is below `smallest` (mesh TensorFlow's 128; 0: always, as
    transformers), a vector never. eps: of squared gradients, and of the parameter's size. Decay, 0 in T5, is
    decoupled: rate * decay * parameter, without the parameter's size. clip None and groups as AdamW.
    Departure: t counts the steps that the moments have seen, not those of the run: a stage that begins them anew would
    otherwise trust its first squared gradient too much.
    """

    def __init__(self, schedule: Schedule | Unended, *, power: float = 0.8, threshold: float = 1.0,
                 eps: tuple[float, float] = (1e-30, 1e-3),
                 smallest: int = 128, relative: bool = True, decay: float = 0.0, clip: float | None = None, groups: Sequence[Group] = ()):
        above_zero(power=power, threshold=threshold, eps=min(eps))
        at_least(0, smallest=smallest)
        self.shared = Shared.checked(schedule, decay, clip, groups)
        self.power, self.threshold, self.eps, self.smallest, self.relative = power, threshold, eps, smallest, relative

    def transform(self, leaves: Leaves, steps: int | None = None) -> optax.GradientTransformation:
        """The optax transformation for the trainable parameters `leaves` in a run of `steps` steps."""
        factored = scale_by_factored(leaves, self.power, self.smallest, self.eps[0], self.threshold)
        return self.shared.around(leaves, steps, optax.chain(factored, scale_by_size(leaves, self.eps[1])) if self.relative else factored)

    def rate(self, step: int, steps: int | None = None) -> float:
        """The learning rate of the step that follows `step` of the run's `steps` steps."""
        return self.shared.rate(step, steps)
