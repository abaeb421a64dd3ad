"""ptmjax list: the shipped runs."""
import argparse
import itertools
import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ptmjax import gin_folder
from ptmjax.cli import session

HELP = "list the shipped gin files: what they are and how many parameters"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    console = Console(soft_wrap=True)
    for path in sorted(gin_folder().glob("*.gin")):
        experiment = session.experiment([str(path)], [])
        count = experiment.build(experiment.stages[-1]).count()
        tasks = ", ".join(stage.task for stage in experiment.stages)
        console.print(f"[bold]{path.name}[/]  {count:,} parameters  {tasks}", highlight=False)
        console.print(f"    {escape(about(path))}", style="dim", highlight=False)
    return 0


def about(path: Path) -> str:
    """The first sentence of a gin file's head: what it is."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    head = " ".join(line.removeprefix("#").strip() for line in lines)
    return re.split(r"(?<=\.) (?=[A-Z])", head, maxsplit=1)[0]
