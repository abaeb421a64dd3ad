"""What `ptmjax train --dry_run` tells: the run's own steps, compiled for these devices, without one taken."""
from collections.abc import Mapping, Sequence

import jax
from rich.console import Console
from rich.table import Table

from ptmjax.cli.experiment import Data
from ptmjax.nn import kernels
from ptmjax.training import loop, memory
from ptmjax.training.flops import flops
from ptmjax.training.memory import Memory
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")  # of a thousand each


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
    batch = loop.abstract_batch(plan, data.source.spec)
    with jax.set_mesh(plan.mesh):
        with kernels.noting() as noted:
            traced = make_step(plan).trace(plan.abstract, batch)
        compiled = traced.lower().compile()
    work = flops(traced.jaxpr.jaxpr)
    return {
        "task": data.task.name,
        "steps": f"{stage.steps:,} of {plan.rows:,} rows: {times(stage.steps * plan.rows, data)}",
        **rows_of_step(plan, batch),
        "attention by": ", ".join(sorted(noted)) or "no kernel: there is none",
        **rows_of_memory(memory.of_compiled(plan, batch, compiled)),
        "matrix products of a step": f"{flop(work)}, {flop(work * stage.steps)} in all steps, on all devices together",
    }


def times(rows: int, data: Data) -> str:
    """How often so many rows read the text; of a mixture, that of the task which is read least, and of that which is read most."""
    found = sorted({f"{share * rows / len(part.training):,.1f}" for share, part in zip(data.shares.values(), data.parts)}, key=float)
    return f"{' to '.join(dict.fromkeys((found[0], found[-1])))} times the text"


def rows_of_step(plan: Plan, batch: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, str]:
    return {
        "micro-batches": str(plan.micro),
        "batch": ", ".join(f"{key} {list(x.shape)}".replace("[", "\\[") for key, x in batch.items()),
        "tokens a step": f"{loop.tokens_of(batch):,}",
        "parameters": f"{plan.build.count():,}",
        "mesh": str(dict(plan.mesh.shape)),
    }


def rows_of_memory(found: Memory) -> dict[str, str]:
    return {
        "parameters a device": size(found.parameters),
        "optimizer's state a device": size(found.optimizer),
        "carry and batch a device": size(found.carry + found.batch),
        "padding of these a device": size(found.padding),
        "temporaries of a step a device": size(found.temporaries),
        "its program": size(found.code),
        "all of it, a device": size(found.peak),
    }


def size(found: int | None) -> str:
    return "?" if found is None else f"{found / 2**20:,.1f} MiB" if abs(found) < 2**30 else f"{found / 2**30:,.2f} GiB"


def flop(work: int) -> str:
    power = min(len(PREFIXES) - 1, (len(str(work)) - 1) // 3)
    return f"{work / 1000**power:.{2 if power else 0}f} {PREFIXES[power]}FLOP"
