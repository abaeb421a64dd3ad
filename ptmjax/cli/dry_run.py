"""What `ptmjax train --dry_run` tells: the run's own steps, compiled for these devices, without one taken."""
import math
from collections.abc import Sequence

import jax
from matplotlib.ticker import EngFormatter
from rich.console import Console
from rich.table import Table

from ptmjax.cli.experiment import Data
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training import loop
from ptmjax.training.flops import flops
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step
from ptmjax.types import PyTree

flop = EngFormatter("FLOP", places=2)


def tell(stages: Sequence[loop.Stage], plans: Sequence[Plan], data: Sequence[Data], console: Console) -> None:
    """A column a stage."""
    table = Table("", *(f"stage {number}" for number in range(1, 1 + len(plans))), title="dry run")
    for name, *cells in zip(*(about(*of).items() for of in zip(stages, plans, data))):
        table.add_row(name[0], *(cell for _, cell in (name, *cells)))
    console.print(table)
    for d in data:
        console.print(d.told(), highlight=False, markup=False)


def about(stage: loop.Stage, plan: Plan, data: Data) -> dict[str, str]:
    rows = rows_sharding(plan.mesh)
    batch = {key: jax.ShapeDtypeStruct((plan.rows, *shape), kind, sharding=rows) for key, (shape, kind) in data.source.spec.items()}
    with jax.set_mesh(plan.mesh):
        traced = make_step(plan).trace(plan.abstract, batch)
        memory = traced.lower().compile().memory_analysis()
    tokens, work = sum(batch[key].size for key in ("tokens", "decoder_tokens") if key in batch), flops(traced.jaxpr.jaxpr)
    epoch = len(data.training)
    return {
        "task": data.task.name,
        "steps": f"{stage.steps:,} of {plan.rows:,} rows: {stage.steps * plan.rows / epoch:,.1f} times the text",
        "micro-batches": str(plan.micro),
        "batch": ", ".join(f"{key} {list(x.shape)}".replace("[", "\\[") for key, x in batch.items()),
        "tokens a step": f"{tokens:,}",
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
