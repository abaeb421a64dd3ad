"""Bytes of a step on one device: what lies there from step to step, and what XLA needs beside it."""
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax

from ptmjax.training.state import Plan
from ptmjax.types import PyTree


class Memory(NamedTuple):
    parameters: int
    optimizer: int
    carry: int
    batch: int
    temporaries: int | None  # None where it is not known
    code: int | None

    @property
    def state(self) -> int:
        """What is there before a step and after it, in one copy: the step gives its state up (donation)."""
        return self.parameters + self.optimizer + self.carry

    @property
    def peak(self) -> int | None:
        known = self.temporaries is not None and self.code is not None
        return self.state + self.batch + self.temporaries + self.code if known else None


def held(tree: PyTree) -> int:
    """Bytes that a device holds of it."""
    plain = [x for x in jax.tree.leaves(tree) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in plain)


def of_step(plan: Plan, batch: Mapping[str, jax.ShapeDtypeStruct], temporaries: int | None = None, code: int | None = None) -> Memory:
    """Of a plan and a batch, whose shapes and places say all but what the compiler adds."""
    state = plan.abstract
    return Memory(held(state.params), held(state.opt_state), held(state.carry), held(batch), temporaries, code)


def of_compiled(plan: Plan, batch: Mapping[str, jax.ShapeDtypeStruct], compiled: jax.stages.Compiled) -> Memory:
    stats = compiled.memory_analysis()
    return of_step(plan, batch) if stats is None else of_step(plan, batch, stats.temp_size_in_bytes, stats.generated_code_size_in_bytes)
