"""The one train step, and the one evaluation step.

B rows of the global batch, M micro-batches.
"""
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from ptmjax.objectives.base import Objective
from ptmjax.training import scale
from ptmjax.training.build import Build
from ptmjax.training.state import Plan, TrainState, fresh, key_of
from ptmjax.types import Array, Batch, Key, Keys, PyTree, Sum, UserError, check, constrain


def make_step(plan: Plan) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """(state, batch) -> (state, metrics), one jit; the old state is given up (donated).

    It differentiates sum_k c_k S_k / W_k with the denominators W_k promised by weights() over the whole batch, so M
    micro-batches give the gradient of one. Metrics gap/k = |W_k - realised| are 0 or an objective is wrong. A step whose
    gradient or new parameters are not finite changes neither parameters, optimizer nor carry; metric skipped counts them since
    step 0, and loop["in_a_row"] those up to now. Of float16, metric scale is the loss scale with which the step was made.
    """
    objective, tx = plan.objective, optax.with_extra_args_support(plan.tx)
    if plan.micro > 1 and objective.coupled:
        raise UserError(f"{type(objective).__name__} couples the rows of a batch: micro-batches must be 1, not {plan.micro}")

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        check(batch, ("index", "start"))
        promised = objective.weights(batch)
        train = plan.trainable(state.params)
        frozen = {name: v for name, v in state.params.items() if name not in train}
        xs = cut((batch, jnp.arange(plan.rows), fresh(state.carry, batch["start"])), plan.micro)
        (grads, sums, metrics), carry = accumulate(micro_loss(plan, state, frozen, promised), train, xs)
        grads = scale.down(grads, state.loop)
        updates, opt_state = tx.update(grads, state.opt_state, train, step=state.step)
        norm, moved = optax.tree.norm(grads), optax.apply_updates(train, updates)
        finite = jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(moved))
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
        means = {name: s.mean() for name, s in sums.items()}
        skipped = state.loop["skipped"] + ~finite
        report = {"loss": objective.total(means), "grad_norm": norm, "skipped": skipped}
        report |= scale.told(state.loop) | {f"gap/{name}": jnp.abs(sums[name].weight - w) for name, w in promised.items()}
        in_a_row = jnp.where(finite, 0, state.loop["in_a_row"] + scale.blamed(state.loop))
        loop = state.loop | {"skipped": skipped, "in_a_row": in_a_row} | scale.moved(state.loop, finite)
        state = TrainState(state.step + 1, keep(moved, train) | frozen, keep(opt_state, state.opt_state), state.rng,
                           keep(join(carry), state.carry), loop)
        return state, report | means | {name: s.mean() for name, s in metrics.items()}

    return jax.jit(step, donate_argnums=0, out_shardings=(jax.tree.map(lambda x: x.sharding, plan.abstract), None))


def micro_loss(plan: Plan, state: TrainState, frozen: dict[str, Array], promised: dict[str, Array]) -> Callable:
    """(train params, (batch, row numbers, carry)) -> (loss, (sums, metrics, carry)) of one micro-batch."""
    key = jax.random.fold_in(state.rng, state.step)

    def loss(train, xs):
        batch, rows, carry = xs
        keys = Keys(Key(jax.random.fold_in(key, 0), rows), Key(jax.random.fold_in(key, 1), rows))
        sums, carry, metrics = plan.objective.losses(plan.build.nets(train | frozen), batch, keys, state.step, carry)
        if set(sums) != set(promised) and (plan.micro > 1 or not plan.objective.coupled):
            raise ValueError(f"{type(plan.objective).__name__}: weights() names {sorted(promised)}, losses() names {sorted(sums)}")
        check_names(plan.objective, sums, metrics)
        means = {name: Sum(s.value, jax.lax.stop_gradient(promised.get(name, s.weight))).mean() for name, s in sums.items()}
        return scale.up(plan.objective.total(means), state.loop), (sums, metrics, carry)

    return loss


def check_names(objective: Objective, sums: dict[str, Sum], metrics: dict[str, Sum]) -> None:
    """A name for a loss or a metric, not both; coefficients of losses that there are."""
    kind = type(objective).__name__
    if twice := sums.keys() & metrics.keys() | (sums.keys() | metrics.keys()) & {"loss", "grad_norm", "skipped", "scale"}:
        raise ValueError(f"{kind}: {sorted(twice)} name two numbers of a step")
    if none := objective.coefficients.keys() - sums.keys():
        raise UserError(f"{kind}.coefficients has {sorted(none)}, its losses are {sorted(sums)}")


def accumulate(loss: Callable, train: dict[str, Array], xs: PyTree) -> tuple[tuple, PyTree]:
    """Scans the micro-batches (leaves [M, B/M, ...]): ((gradients, sums, metrics) added up, carry [M, B/M, ...])."""
    def one(train, x):
        grads, (sums, metrics, carry) = jax.grad(loss, has_aux=True)(train, x)
        return (grads, sums, metrics), carry

    def body(total, x):
        new, carry = one(train, x)
        return jax.tree.map(jnp.add, total, new), carry

    like, _ = jax.eval_shape(one, train, jax.tree.map(lambda x: x[0], xs))
    return jax.lax.scan(body, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like), xs)


def by_rows(tree: PyTree, lead: int = 0) -> PyTree:
    """Shards axis `lead` of every leaf as rows."""
    return jax.tree.map(lambda x: constrain(x, *[None] * lead, "batch", *[None] * (x.ndim - lead - 1)), tree)


def cut(tree: PyTree, micro: int) -> PyTree:
    """Leaves [B, ...] -> [M, B/M, ...]; micro-batch m takes rows m, m + M, ..., so that no row changes its device."""
    return by_rows(jax.tree.map(lambda x: x.reshape(x.shape[0] // micro, micro, *x.shape[1:]).swapaxes(0, 1), tree), lead=1)


def join(tree: PyTree) -> PyTree:
    """The inverse of cut."""
    return by_rows(jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), tree))


def make_eval(build: Build, objective: Objective, seed: int = 0) -> Callable:
    """(params, batch, carry, step) -> ({loss: Sum}, {metric: Sum}, carry): the same losses() without dropout.

    What is sampled is keyed by record id and seed, so the result depends neither on batch size nor on hosts.
    """
    def evaluate(params, batch, carry, step):
        check(batch, ("index", "start"))
        keys = Keys(None, Key(key_of(seed, "evaluation"), batch["index"]))
        sums, carry, metrics = objective.losses(build.nets(params), batch, keys, step, fresh(carry, batch["start"]))
        check_names(objective, sums, metrics)
        return sums, metrics, carry

    return jax.jit(evaluate)
