"""Bytes of a step on one device: what lies there from step to step, and what XLA needs beside it."""
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax

from ptmjax.training.state import Plan
from ptmjax.types import PyTree


class Memory(NamedTuple):
    """The first four as their shapes say; None where XLA does not tell."""

    parameters: int
    optimizer: int
    carry: int
    batch: int
    padding: int | None = None  # what layouts make more of these (a TPU's last axis of 64 takes 128), and the results that are no state
    temporaries: int | None = None
    code: int | None = None

    @property
    def state(self) -> int:
        """What is there before a step and after it, in one copy: the step gives its state up (donation)."""
        return self.parameters + self.optimizer + self.carry

    @property
    def peak(self) -> int | None:
        """All of it; at least, where the padding is not known."""
        known = self.temporaries is not None and self.code is not None
        return self.state + self.batch + (self.padding or 0) + self.temporaries + self.code if known else None


def held(tree: PyTree) -> int:
    """Bytes that a device holds of it."""
    plain = [x for x in jax.tree.leaves(tree) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in plain)


def of_step(plan: Plan, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Memory:
    """Of a plan and a batch, whose shapes and places say all but what the compiler adds."""
    state = plan.abstract
    return Memory(held(state.params), held(state.opt_state), held(state.carry), held(batch))


def of_compiled(plan: Plan, batch: Mapping[str, jax.ShapeDtypeStruct], compiled: jax.stages.Compiled) -> Memory:
    there, stats = of_step(plan, batch), compiled.memory_analysis()
    if stats is None:
        return there
    taken = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes  # the state is both, in one place
    # Below 0 by what a step is given and does not read, where layouts pad nothing: that lies there all the same.
    padding = max(0, taken - there.state - there.batch)
    return there._replace(padding=padding, temporaries=stats.temp_size_in_bytes, code=stats.generated_code_size_in_bytes)
