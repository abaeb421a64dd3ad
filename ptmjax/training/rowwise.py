"""An evaluation row by row: the same sums, each row's by itself, as intervals over held-out rows need them.

B rows.
"""
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ptmjax.objectives.base import Objective
from ptmjax.training.build import Build
from ptmjax.training.state import key_of
from ptmjax.types import Array, Batch, Key, Keys, Sum, UserError


def make_rows(build: Build, objective: Objective, seed: int = 0) -> Callable[[dict[str, Array], Batch, Array], dict[str, Sum]]:
    """(params, batch, step) -> {loss or metric: Sum of [B]}: what make_eval adds up, of each row as a batch of one.

    To be called outside of jax.set_mesh: a batch of one cannot be laid over a mesh. The arrays may lie on one, and XLA shares out the rows.
    UserError where rows are not by themselves: an objective that couples them, or hands a carry from batch to batch.
    """
    if objective.coupled:
        raise UserError(f"{type(objective).__name__} couples the rows of a batch: its numbers have no rows, leave --rows out")

    def one(nets, step: Array, row: Batch) -> dict[str, Sum]:
        batch = {name: x[None] for name, x in row.items()}
        carry = objective.init_carry(nets, 1)
        if jax.tree.leaves(carry):
            raise UserError(f"{type(objective).__name__} hands a carry from batch to batch: its numbers have no rows, leave --rows out")
        keys = Keys(None, Key(key_of(seed, "evaluation"), batch["index"]))
        sums, _, metrics = objective.losses(nets, batch, keys, step, carry)
        return jax.tree.map(jnp.asarray, sums | metrics)

    def rows(params: dict[str, Array], batch: Batch, step: Array) -> dict[str, Sum]:
        nets = build.nets(params)
        return jax.vmap(lambda row: one(nets, step, row))(dict(batch))

    return jax.jit(rows)
