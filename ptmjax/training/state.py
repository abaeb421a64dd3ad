"""The state of a run, and how it is born sharded.

B rows of a batch.
"""
import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ptmjax.objectives.base import Objective
from ptmjax.parallel.sharding import follow, placed, row_shards, rows_sharding
from ptmjax.training import scale
from ptmjax.training.build import Build
from ptmjax.types import WHOLE, Array, PyTree, UserError, pytree, sharding_rules

FSDP = ("optimizer", "parameters")  # its state alone (ZeRO-1: Rajbhandari et al. 2020, section 5.1), or that of parameters too


@pytree
class TrainState:
    step: Array  # () int32: steps done
    params: dict[str, Array]  # by path, float32
    opt_state: PyTree  # of the parameters that are not frozen
    rng: Array  # () typed key; the step's keys are fold_ins of it, so nothing else is to be saved
    carry: PyTree  # the objective's: leaves [B, ...], cut into micro-batches with the batch
    loop: dict[str, Array]  # () int32: skipped and in_a_row (non-finite steps so far; up to now without a finite one between),
    # begin (the step at which the present stage began); of float16 the loss scale (scale.py)


def key_of(seed: int, name: str) -> Array:
    """The one SEED has named branches: params, step, ..."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


@dataclass(frozen=True)
class Plan:
    """All that is fixed before the first step: what it builds, where it lies, without an array made."""

    build: Build
    objective: Objective
    tx: optax.GradientTransformation
    mesh: Mesh
    rows: int
    seed: int
    micro: int
    fsdp: str = "parameters"  # what of the state that axis of the mesh divides: one of FSDP

    def trainable(self, params: dict[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in params.items() if name not in self.build.frozen}

    def born(self) -> TrainState:
        """The state at step 0 (under jit)."""
        params = self.build.init(key_of(self.seed, "params"))
        scalars = {name: jnp.int32(0) for name in ("skipped", "in_a_row", "begin")}
        return TrainState(jnp.int32(0), params, self.moments(params), key_of(self.seed, "step"), self.carry(params),
                          scalars | scale.begun(self.build.compute))

    def moments(self, params: dict[str, Array]) -> PyTree:
        """The optimizer's state before its first step over `params`."""
        return self.tx.init(self.trainable(params))

    def carry(self, params: dict[str, Array]) -> PyTree:
        """The carry before the first batch."""
        return self.objective.init_carry(self.build.nets(params), self.rows)

    @functools.cached_property
    def abstract(self) -> TrainState:
        """Shapes, types and shardings of the state; a mesh or batch that does not divide is a UserError."""
        parts = row_shards(self.mesh) * self.micro
        if self.rows % parts:
            raise UserError(f"a batch of {self.rows} rows does not divide by {row_shards(self.mesh)} row shards of the mesh times "
                            f"{self.micro} micro-batches: make the batch a multiple of {parts}")
        state, everywhere = jax.eval_shape(self.born), NamedSharding(self.mesh, P())
        for path, x in jax.tree_util.tree_leaves_with_path(state.carry):
            if x.ndim == 0 or x.shape[0] != self.rows:
                raise ValueError(f"carry{jax.tree_util.keystr(path)} is {list(x.shape)}: its first axis must count the {self.rows} rows")
        spread = lambda: {n: placed(self.mesh, n, leaf.shape, leaf.names) for n, leaf in self.build.leaves.items()}
        moments = follow(state.opt_state, state.params, spread(), everywhere)
        with sharding_rules(WHOLE if self.fsdp == "optimizer" else {}):
            params = spread()
        rows = rows_sharding(self.mesh)
        shardings = TrainState(everywhere, params, moments, everywhere, jax.tree.map(lambda _: rows, state.carry),
                               dict.fromkeys(state.loop, everywhere))
        return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)

    def create(self) -> TrainState:
        """The state at step 0."""
        return self.made(self.born, self.abstract)

    def made(self, make: Callable[..., PyTree], like: PyTree, *args) -> PyTree:
        """make(*args), every array made where that of `like` will live."""
        with jax.set_mesh(self.mesh):
            return jax.jit(make, out_shardings=jax.tree.map(lambda x: x.sharding, like))(*args)


def fresh(carry: PyTree, start: Array) -> PyTree:
    """Zeros in the rows [B] that begin a new stream."""
    return jax.tree.map(lambda c: jnp.where(start.reshape(-1, *[1] * (c.ndim - 1)), jnp.zeros_like(c), c), carry)
