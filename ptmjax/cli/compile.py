"""ptmjax compile: a run's own train step, compiled for chips that nobody has rented yet.

Needs no device, no text and no network, and writes nothing: the sizes of the tables are those of the gin file (V), the shapes of a
batch those that the task's cut and corruption make of any text (Task.made_up).
"""
import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from ptmjax.cli import config, session
from ptmjax.cli.dry_run import flop, rows_of_memory, rows_of_step, size
from ptmjax.cli.experiment import Data
from ptmjax.nn import kernels
from ptmjax.nn.stack import REMAT
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import row_shards
from ptmjax.parallel.topology import FORMS, Topology, topology
from ptmjax.training import hlo, loop, memory, roofline
from ptmjax.training.flops import flops
from ptmjax.training.memory import Memory
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step
from ptmjax.types import UserError, at_least, at_most, one_of

HELP = "compile a run's step for a pod that is not at hand: does it fit, what is sent, how long does a step take at least"
EXAMPLES = """
ptmjax compile --gin_file=bert_large.gin --topology=v5e:16x16 --mesh=data=64,model=4
ptmjax compile --gin_file=t5_11b.gin --topology=v5p:16x16x16 --mesh=data=64,fsdp=8,model=8 --remat=full --json
ptmjax compile --gin_file=bert_demo.gin --topology=cpu:8 --mesh=data=4,model=2
"""
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_arguments(parser)
    parser.add_argument("--topology", required=True, metavar="KIND:SIZES", help=f"the chips, with sizes of your own: {', '.join(FORMS)}")
    parser.add_argument("--mesh", metavar="AXIS=N,...", help="in place of Experiment.mesh")
    parser.add_argument("--microbatches", type=int, metavar="N", help="in place of Stage.micro")
    parser.add_argument("--remat", metavar="NAME", help=f"in place of Stack.remat: {', '.join(REMAT)}")
    parser.add_argument("--stage", type=int, metavar="N", help="of several, counted from 1 (default: the last)")
    parser.add_argument("--json", action="store_true", help="one JSON object, with sizes in bytes and times in seconds")


class Step(NamedTuple):
    """A stage's step, traced for the mesh."""

    number: int  # of the stage, from 1
    task: str
    plan: Plan
    batch: dict[str, jax.ShapeDtypeStruct]
    traced: jax.stages.Traced
    attention: list[str]  # its kernels


def run(args: argparse.Namespace) -> int:
    place = topology(args.topology)
    step = traced(args, place, args.remat, args.microbatches)
    config.check_used()
    report = {"gin_file": args.gin_files, "topology": place.name, "remat": args.remat} | told(args, place, step)
    if args.json:
        print(json.dumps(report))
    else:
        show(report, step, Console(soft_wrap=True))
    return 0


def traced(args: argparse.Namespace, place: Topology, remat: str | None, micro: int | None) -> Step:
    """The configuration is loaded anew: what gin has bound is made while a network is."""
    if remat is not None:
        one_of("--remat", remat, REMAT)
    bindings = args.gin_bindings + ([] if remat is None else [f"Stack.remat={remat!r}"])
    experiment = session.experiment(args.gin_files, bindings)
    with session.fitting():
        number = len(experiment.stages) if args.stage is None else args.stage
        if not 1 <= number <= len(experiment.stages):
            raise UserError(f"--stage={number}: the run has {len(experiment.stages)}, counted from 1: name one of them")
        data = Data(experiment.stages[number - 1], experiment.seed, Path(), number - 1)
        stage = experiment.stage(data)
        if micro is not None:
            at_least(1, **{"--microbatches": micro})
            at_most(stage.rows, **{"--microbatches": micro})
            stage = dataclasses.replace(stage, micro=micro)
        mesh = make_mesh(experiment.mesh if args.mesh is None else args.mesh, place.devices)
        plan = loop.plan_of(stage, mesh, experiment.seed, experiment.steps)
        batch = loop.abstract_batch(plan, data.spec)
        with jax.set_mesh(mesh), kernels.noting() as noted:
            step = make_step(plan).trace(plan.abstract, batch)
        return Step(number, data.task.name, plan, batch, step, sorted(noted))


# ------------------------------------------------------------------ what the compiler says
def compiled(step: Step) -> tuple[Memory, str | None]:
    """(bytes, the optimised program), None where libtpu finds that it does not fit: then the temporaries are those it names."""
    try:
        with jax.set_mesh(step.plan.mesh):
            found = step.traced.lower().compile()
    except jax.errors.JaxRuntimeError as e:
        there = memory.of_step(step.plan, step.batch)
        if (temporaries := exceeding(str(e), there)) is None:
            raise
        return there._replace(temporaries=temporaries, code=0), None
    return memory.of_compiled(step.plan, step.batch, found), found.as_text()


def exceeding(message: str, there: Memory) -> int | None:
    """The bytes of temporaries in libtpu's refusal, which names these alone or all that the step uses; None in another fault."""
    found = re.search(r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds|Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", message)
    if found is None:
        return None
    alone, whole = found[1] is not None, there.state + there.batch
    number, unit = (found[1], found[2]) if alone else (found[3], found[4])
    return int(float(number) * 2 ** UNITS[unit]) - (0 if alone else whole)


def told(args: argparse.Namespace, place: Topology, step: Step) -> dict:
    """The report, but for what was asked."""
    plan, each, began = step.plan, 1 if place.chip is None else place.chip.devices, time.monotonic()
    found, program = compiled(step)
    seconds, work, tokens = time.monotonic() - began, flops(step.traced.jaxpr.jaxpr), loop.tokens_of(step.batch)
    known = place.chip is not None and found.peak is not None
    fits = program is not None and found.peak <= place.chip.memory if known else None
    report = {
        "stage": step.number, "task": step.task, "mesh": dict(plan.mesh.shape), "chips": plan.mesh.size // each, "rows": plan.rows,
        "microbatches": plan.micro, "compute": str(plan.build.compute), "attention": step.attention,
        "parameters": plan.build.count(), "tokens": tokens,
        "bytes": found._asdict() | {"peak": found.peak}, "memory": place.chip and place.chip.memory, "fits": fits,
        "spare": place.chip.memory - found.peak if known else None, "flops": work, "compile_seconds": round(seconds, 1),
    }
    if program is not None:
        sent, unknown = hlo.collectives(program)
        report |= {"collectives": {kind: {"count": n, "bytes": b} for kind, (n, b) in hlo.by_kind(sent).items()}, "unread_loops": unknown}
        if place.chip is not None:
            least = roofline.bounds(place.chip, plan.mesh.size, work, found, sent)
            report |= {"seconds_at_least": least._asdict(), "bottleneck": least.bottleneck, "tokens_a_second_at_most": tokens / least.least}
    return report | ({"helps": list(helps(args, place, step))} if fits is False else {})


# ------------------------------------------------------------------ what helps
def helps(args: argparse.Namespace, place: Topology, step: Step) -> Iterator[dict]:
    """Knobs and the bytes that they leave: of the state where more chips share it, of all where less is kept from forward to backward
    pass. The latter are compiled, each with more micro-batches than the one before, until one fits."""
    for axis in ("fsdp", "model"):
        if (there := spread(step.plan, place, axis)) is not None:
            state = memory.of_step(there, step.batch)
            yield {"knob": f"--mesh={text(there)}", "parameters": state.parameters, "optimizer": state.optimizer}
    micro, most, fits = step.plan.micro, step.plan.rows // row_shards(step.plan.mesh), False
    while not fits and micro <= most and most % micro == 0:
        knobs = f"--remat=full --microbatches={micro}"
        print(f"ptmjax: it does not fit: trying {knobs}", file=sys.stderr, flush=True)
        found, program = compiled(traced(args, place, "full", micro))
        fits = program is not None and found.peak <= place.chip.memory
        yield {"knob": knobs, "peak": found.peak, "temporaries": found.temporaries, "fits": fits}
        micro *= 2


def spread(plan: Plan, place: Topology, axis: str) -> Plan | None:
    """The plan on a mesh with twice as much of `axis` and half of data; None where there is no such mesh."""
    shape = dict(plan.mesh.shape)
    if shape["data"] % 2:
        return None
    shape |= {"data": shape["data"] // 2, axis: shape[axis] * 2}
    try:
        there = dataclasses.replace(plan, mesh=make_mesh(",".join(f"{a}={n}" for a, n in shape.items()), place.devices))
        return there if there.abstract else None
    except UserError:
        return None


def text(plan: Plan) -> str:
    return ",".join(f"{axis}={n}" for axis, n in plan.mesh.shape.items() if n > 1)


# ------------------------------------------------------------------ what is shown
def show(report: Mapping, step: Step, console: Console) -> None:
    table = Table("", f"stage {report['stage']}, {report['task']}", title=f"compiled for {report['topology']}")
    found = Memory(**{name: report["bytes"][name] for name in Memory._fields})
    chips, devices = report["chips"], step.plan.mesh.size
    rows = {"chips": f"{chips:,}" + f", each {devices // chips} devices" * (devices > chips)}
    rows |= rows_of_step(step.plan, step.batch) | rows_of_memory(found)
    rows["attention by"] = ", ".join(step.attention) or "no kernel: there is none"
    if report["fits"] is not None:
        verdict = f"it fits, with {size(report['spare'])} to spare" if report["fits"] else "it does not fit"
        rows["memory of a device"] = f"{size(report['memory'])}: {verdict}"
    rows["matrix products of a step"] = f"{flop(report['flops'])} on all devices together"
    for kind, sent in report.get("collectives", {}).items():
        rows[f"{kind}, a step"] = f"{sent['count']:,}, by which a device receives {size(sent['bytes'])}"
    if report.get("unread_loops"):
        rows["loops of unknown length"] = f"{report['unread_loops']}: what they send is counted once"
    for what, seconds in report.get("seconds_at_least", {}).items():
        lasts = "not known" if seconds is None else f"{1000 * seconds:,.2f} ms"
        rows[f"a step takes at least, by {what}"] = lasts + " (the bottleneck)" * (what == report["bottleneck"])
    if "tokens_a_second_at_most" in report:
        rows["tokens a second, at most"] = f"{report['tokens_a_second_at_most']:,.0f}"
    for way in report.get("helps", ()):
        verdict = [] if "fits" not in way else ["it fits" if way["fits"] else "it does not fit"]
        sizes = [f"{name} {size(way[name])}" for name in ("parameters", "optimizer", "temporaries", "peak") if name in way]
        rows[f"with {way['knob']}"] = ", ".join(sizes + verdict)
    rows["compiled in"] = f"{report['compile_seconds']} s"
    for name, cell in rows.items():
        table.add_row(name, cell)
    console.print(table)
