"""ptmjax list: the shipped runs."""
import argparse
import itertools
import json
import re
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape

from ptmjax import gin_folder
from ptmjax.cli import session
from ptmjax.cli.experiment import Data, Experiment, Stage
from ptmjax.models.network import Network
from ptmjax.training.build import Build

HELP = "list the shipped gin files: what they are, their papers and how many parameters"
EXAMPLES = """
ptmjax list
ptmjax list --json                   # with the axes of each
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, with the axes of each: what its network, loss and data are made of")
    session.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    found, console = [], Console(soft_wrap=True)
    for path in sorted(gin_folder().glob("*.gin")):
        experiment = session.experiment([str(path)], [])
        build = experiment.build(experiment.stages[-1])
        if args.json:
            found.append({"gin_file": path.name, "about": about(path), "paper": paper(path), "parameters": build.count()}
                         | axes(experiment, build, args.cache))
            continue
        tasks = ", ".join(stage.task for stage in experiment.stages)
        console.print(f"[bold]{path.name}[/]  {build.count():,} parameters  {tasks}", highlight=False)
        console.print(f"    {escape(about(path))}", style="dim", highlight=False)
    if args.json:
        print(json.dumps(found, indent=1))
    return 0


def head(path: Path) -> str:
    """The comment with which a gin file begins, in one line."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def about(path: Path) -> str:
    """Its first sentence: what it is."""
    return re.split(r"(?<=\.) (?=[A-Z])", head(path), maxsplit=1)[0]


def paper(path: Path) -> str | None:
    """The number of its paper in the arXiv; None where the head names none."""
    found = re.search(r"arXiv (\d+\.\d+)", head(path))
    return found and found[1]


# ------------------------------------------------------------------ axes
def axes(experiment: Experiment, build: Build, cache: Path) -> dict:
    """The point that a run is."""
    nets = jax.eval_shape(build.nets, {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in build.leaves.items()})
    return {
        "networks": {name: of_network(net) for name, net in nets.items()},
        "ties": dict(experiment.ties),
        "optimizer": name_of(experiment.optimizer),
        "stages": [{"task": stage.task, "corruption": corruptions(data), "steps": stage.steps, "batch": stage.batch,
                    "objective": name_of(stage.objective), "losses": losses(stage, data)}
                   for stage, data in zip(experiment.stages, experiment.data(cache))],
    }


def corruptions(data: Data) -> str:
    return ", ".join(dict.fromkeys(name_of(part.corruption) for part in data.parts))


def losses(stage: Stage, data: Data) -> list[str]:
    """The names of what is added up, of shapes alone."""
    batch = {key: jax.ShapeDtypeStruct((1, *shape), kind) for key, (shape, kind) in data.spec.items()}
    return sorted(jax.eval_shape(stage.objective.weights, batch))


def of_network(net: Network) -> dict:
    found = {"embedder": sorted(net.embedder.parts), "heads": {name: name_of(head) for name, head in net.heads.items()}}
    if net.context is not None:
        found |= {"mask": net.context.see.__name__, "rotary": net.context.rotary, "bias": net.context.bias and name_of(net.context.bias)}
    if net.stack is not None:
        found["stack"] = [f"{n} x {name_of(group)}" for group, n in zip(net.stack.groups, net.stack.counts)]
        found |= {"shared": list(net.stack.shared)} if net.stack.shared else {}
    return found | ({"decoder": of_network(net.decoder)} if net.decoder is not None else {})


def name_of(part: object) -> str:
    return type(part).__name__
