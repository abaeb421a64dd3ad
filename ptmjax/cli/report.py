"""ptmjax report: several runs side by side: a table (Markdown) and their curves (PNG)."""
import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from etils import epath
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ptmjax.cli import config, places
from ptmjax.cli.experiment import VALIDATION
from ptmjax.training.metrics import on_disk, read_lines
from ptmjax.types import UserError

HELP = "put runs side by side: what differs between them, what they reached, their curves"
EXAMPLES = """
ptmjax report runs/a runs/b --out=report
"""
SETTINGS = 12  # differing settings that the screen shows; report.md has all
PANELS = 6  # held-out numbers that are drawn


class Run(NamedTuple):
    name: str
    settings: dict[str, str]  # of its config.gin
    trained: list[dict]  # lines of metrics.jsonl
    held_out: list[dict]
    tokens: int
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workdirs", nargs="+", type=places.anywhere, metavar="WORKDIR", help="folders of runs, in the order of the columns")
    parser.add_argument("--out", type=places.anywhere, default="report", metavar="FOLDER",
                        help="where report.md and report.png are written (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    names = short_names([str(folder) for folder in args.workdirs])
    runs = [read(folder, name) for folder, name in zip(args.workdirs, names)]
    rows, console = table(runs), Console(soft_wrap=True)
    with on_disk(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "report.md").write_text(markdown(names, rows, draw(runs, args.out / "report.png")))
    shown, settings = Table("", *map(escape, names)), len(differing(runs))
    for row in rows[:SETTINGS] + rows[max(SETTINGS, settings):] if settings > SETTINGS else rows:
        shown.add_row(*map(escape, row))
    console.print(shown)
    if settings > SETTINGS:
        console.print(f"{settings - SETTINGS} more settings differ: report.md has them", highlight=False)
    print(f"{args.out / 'report.md'}  this table\n{args.out / 'report.png'}  the curves")
    return 0


def short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of the paths, as many as tell them apart; of a path on this machine as it is from the root."""
    parts = [epath.Path(path if "://" in path else Path(path).resolve()).parts for path in paths]
    for k in range(1, 1 + max(map(len, parts))):
        names = ["/".join(p[-k:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"{paths[0]} is named twice: name each run once")


def read(folder: epath.Path, name: str) -> Run:
    if not (folder / config.SAVED).is_file():
        raise UserError(f"{folder} holds no run (there is no {config.SAVED} in it): name folders of `ptmjax train`")
    lines, timing = read_lines(folder / "metrics.jsonl"), read_lines(folder / "timing.jsonl", "seconds", "tokens")
    if not lines:
        raise UserError(f"{folder / 'metrics.jsonl'} holds no line yet: let the run reach its first log, or leave it out")
    of = lambda held: [line for line in lines if line.get("set") == held]
    settings = config.saved_keys(folder)
    return Run(name, settings, of(None), of(VALIDATION), sum(x["tokens"] for x in timing), sum(x["seconds"] for x in timing))


# ------------------------------------------------------------------ the table
def table(runs: Sequence[Run]) -> list[list[str]]:
    """[what, a cell a run] of the settings that differ, then of what was reached."""
    rows = [[f"`{key}`", *(run.settings.get(key, "-") for run in runs)] for key in differing(runs)]
    trained, held_out = ([lines[-1] if lines else {} for lines in of] for of in zip(*((run.trained, run.held_out) for run in runs)))
    of = lambda name, lines: [cell(line.get(name, "-")) for line in lines]
    rows += [["step", *of("step", trained)], ["training loss", *of("loss", trained)], ["evaluated at step", *of("step", held_out)]]
    rows += [[name, *of(name, held_out)] for name in numbers(held_out)]
    rows.append(["tokens", *(f"{run.tokens:,}" for run in runs)])
    rows.append(["seconds of training", *(f"{run.seconds:,.0f}" for run in runs)])
    rows.append(["tokens/s", *(f"{run.tokens / run.seconds:,.0f}" if run.seconds else "-" for run in runs)])
    return rows


def differing(runs: Sequence[Run]) -> list[str]:
    """Keys of the settings in which the runs differ: macros first (they stand for others), then what all have, then what some lack."""
    every = {key for run in runs for key in run.settings}
    order = lambda key: ("." in key, not all(key in run.settings for run in runs), key)
    return sorted((key for key in every if len({run.settings.get(key) for run in runs}) > 1), key=order)


def numbers(lines: Sequence[Mapping]) -> list[str]:
    """Names of the numbers of evaluation lines, the loss first, in the order of their first line."""
    found = dict.fromkeys(name for line in lines for name, x in line.items() if not isinstance(x, str) and name not in ("step", "records"))
    return sorted(found, key=lambda name: (name != "loss", "accuracy" not in name))


def cell(x: object) -> str:
    return "not finite" if x is None else x if isinstance(x, str) else f"{x:,.4g}" if isinstance(x, float) else f"{x:,}"


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]], drawn: str) -> str:
    line = lambda cells: "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    return "\n".join(["# Runs", "", line(["", *names]), line(["---"] * (1 + len(names))), *map(line, rows), "", f"![curves]({drawn})", ""])


# ------------------------------------------------------------------ the curves
def draw(runs: Sequence[Run], path: epath.Path) -> str:
    """A panel of the training loss, and one of each number held out; the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = numbers([run.held_out[-1] for run in runs if run.held_out])[:PANELS]
    figure, panels = pyplot.subplots(1, 1 + len(names), figsize=(5 * (1 + len(names)), 4), layout="constrained", squeeze=False)
    for panel, name in zip(panels[0], ["loss", *names]):
        training = panel is panels[0][0]
        for run in runs:
            lines = [line for line in (run.trained if training else run.held_out) if isinstance(line.get(name), int | float)]
            panel.plot([line["step"] for line in lines], [line[name] for line in lines], linewidth=1,
                       label=run.name.replace("$", r"\$"), marker=None if training else "o", markersize=3)
        panel.set(xlabel="step", title=f"{name}, {'training batches' if training else 'held out'}")
    panels[0][0].legend()
    with path.open("wb") as file:
        figure.savefig(file, dpi=120, format="png")
    pyplot.close(figure)
    return path.name
