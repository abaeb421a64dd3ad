"""ptmjax list: the shipped runs."""
import argparse

from rich.console import Console
from rich.table import Table

from ptmjax import gin_folder
from ptmjax.cli import session

HELP = "list the shipped gin files: what they are and how many parameters"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    table = Table("gin file", "what it is", "parameters", "tasks")
    for path in sorted(gin_folder().glob("*.gin")):
        experiment = session.experiment([str(path)], [])
        about = path.read_text().split("\n", 1)[0].removeprefix("#").strip()
        count = experiment.build(experiment.stages[-1]).count()
        table.add_row(path.name, about, f"{count:,}", ", ".join(stage.task for stage in experiment.stages))
    Console().print(table)
    return 0
