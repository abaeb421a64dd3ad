"""What `ptmjax train --dry_run` tells: the run's own steps, compiled for these devices, without one taken."""
import math
from collections.abc import Sequence

import jax
from rich.console import Console
from rich.table import Table

from ptmjax.cli.experiment import Data
from ptmjax.training import loop
from ptmjax.training.flops import flops
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step
from ptmjax.types import PyTree


def tell(stages: Sequence[loop.Stage], plans: Sequence[Plan], data: Sequence[Data], console: Console) -> None:
    """A column a stage."""
    table = Table("", *(f"stage {number}" for number in range(1, 1 + len(plans))), title="dry run")
    columns = [about(*of) for of in zip(stages, plans, data)]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    for d in data:
        console.print(d.told(), highlight=False, markup=False)


def about(stage: loop.Stage, plan: Plan, data: Data) -> dict[str, str]:
    from matplotlib.ticker import EngFormatter  # not at the start of every training

    batch, flop = loop.abstract_batch(plan, data.source.spec), EngFormatter("FLOP", places=2)
    with jax.set_mesh(plan.mesh):
        traced = make_step(plan).trace(plan.abstract, batch)
        memory = traced.lower().compile().memory_analysis()
    work, epoch = flops(traced.jaxpr.jaxpr), len(data.training)
    return {
        "task": data.task.name,
        "steps": f"{stage.steps:,} of {plan.rows:,} rows: {stage.steps * plan.rows / epoch:,.1f} times the text",
        "micro-batches": str(plan.micro),
        "batch": ", ".join(f"{key} {list(x.shape)}".replace("[", "\\[") for key, x in batch.items()),
        "tokens a step": f"{loop.tokens_of(batch):,}",
        "parameters": f"{stage.build.count():,}",
        "mesh": str(dict(plan.mesh.shape)),
        "parameters a device": mib(held(plan.abstract.params)),
        "optimizer's state a device": mib(held(plan.abstract.opt_state)),
        "temporaries of a step a device": mib(memory.temp_size_in_bytes) if memory is not None else "?",
        "matrix products of a step": f"{flop(work)}, {flop(work * stage.steps)} in all steps, on all devices together",
    }


def held(tree: PyTree) -> int:
    """Bytes that a device holds of it."""
    plain = [x for x in jax.tree.leaves(tree) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in plain)


def mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"
