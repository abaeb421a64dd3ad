"""The comparison of a sweep's variants: table.md, table.csv, table.png."""
import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from etils import epath
from rich.markup import escape
from rich.table import Table

from ptmjax.cli import folder
from ptmjax.cli.paired import DRAWS, Compared, Sums, compared
from ptmjax.training.metrics import on_disk

MISSING = "missing"
HEAD = ["variant", "seeds", "mean", "deviation", "difference", "95 % over seeds", "95 % over documents"]
METHOD = f"""
- *mean*, *deviation*: over seeds; the deviation is that of a sample.
- *difference*: to the first variant, each seed with the same seed of that, mean over seeds.
- *95 % over seeds*: of that mean, by a percentile bootstrap ({DRAWS:,} draws, fixed seed) of the paired differences. It says how far
  another draw of seeds might move it; of fewer than about five seeds it is too narrow, of one there is none.
- *95 % over documents*: the same, drawing held-out documents instead (rows, where records do not tell their document), the same ones for
  all runs, seeds fixed. It says how far other held-out text might move it, and nothing of the seeds.
- {MISSING}: the run or its readout failed, or is not done.
"""


class Number(NamedTuple):
    """A number of a readout, of all variants."""

    readout: str
    name: str
    variants: dict[str, Compared]


def number(readout: str, name: str, values: Mapping[str, Mapping[int, float | None]], rows: Mapping[str, Mapping[int, Sums]]) -> Number:
    """values: variant -> seed -> number, None where it is missing; the first variant is what the others are compared with."""
    first = next(iter(values))
    of = lambda variant: compared(dict(values[variant]), dict(values[first]), dict(rows[variant]), dict(rows[first]), variant == first)
    return Number(readout, name, {variant: of(variant) for variant in values})


def cells(variant: str, of: Compared) -> list[str]:
    """A row of the table."""
    lacks = [str(seed) for seed, x in of.values.items() if x is None]
    seeds = str(len(of.values) - len(lacks)) + (f" ({MISSING}: {', '.join(lacks)})" if lacks else "")
    shown = lambda x, sign="": "-" if x is None else f"{x:{sign}.4f}"
    between = lambda pair: "-" if pair is None else f"{pair[0]:+.4f} .. {pair[1]:+.4f}"
    mean = MISSING if of.mean is None else shown(of.mean)
    return [variant, seeds, mean, shown(of.deviation), shown(of.difference, "+"), between(of.seeds), between(of.documents)]


def markdown(title: str, numbers: Sequence[Number], drawn: str) -> str:
    line = lambda row: "| " + " | ".join(row) + " |"
    parts = [f"# {title}", ""]
    for one in numbers:
        rows = [line(cells(variant, of)) for variant, of in one.variants.items()]
        parts += [f"## {one.readout}: {one.name}", "", line(HEAD), line(["---"] * len(HEAD)), *rows, ""]
    return "\n".join([*parts, f"![readouts]({drawn})", "", *METHOD.strip().splitlines(), ""])


def table(numbers: Sequence[Number]) -> str:
    """As CSV, a line a number and variant, digits in full; what is missing is empty, and named in the last column."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["readout", "number", "variant", "mean", "deviation", "difference", "seeds_low", "seeds_high", "documents_low",
                  "documents_high", "values", "missing_seeds"])
    for one in numbers:
        for variant, of in one.variants.items():
            plain = lambda x: "" if x is None else repr(x)
            pair = lambda p: ["", ""] if p is None else [repr(p[0]), repr(p[1])]
            values = " ".join(f"{seed}:{x!r}" for seed, x in of.values.items() if x is not None)
            lacks = " ".join(str(seed) for seed, x in of.values.items() if x is None)
            out.writerow([one.readout, one.name, variant, plain(of.mean), plain(of.deviation), plain(of.difference), *pair(of.seeds),
                          *pair(of.documents), values, lacks])
    return text.getvalue()


def picture(numbers: Sequence[Number]) -> bytes:
    """A panel a number: every seed a point, the mean a line; as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(numbers[0].variants)
    width = max(4.0, 0.9 * len(names) + 1)
    figure, panels = pyplot.subplots(1, len(numbers), figsize=(width * len(numbers), 4), layout="constrained", squeeze=False)
    for panel, one in zip(panels[0], numbers):
        for at, of in enumerate(one.variants.values()):
            values = [x for x in of.values.values() if x is not None]
            panel.plot([at] * len(values), values, "o", color="tab:blue", alpha=0.6)
            if of.mean is None:
                panel.text(at, 0.5, MISSING, rotation=90, ha="center", va="center", transform=panel.get_xaxis_transform())
            else:
                panel.hlines(of.mean, at - 0.3, at + 0.3, color="tab:orange")
        panel.set_xlim(-0.5, len(names) - 0.5)
        panel.set_xticks(range(len(names)), [name.replace("$", r"\$") for name in names], rotation=30, ha="right")
        panel.set_title(f"{one.readout}: {one.name}".replace("$", r"\$"))
    file = io.BytesIO()
    figure.savefig(file, dpi=120, format="png")
    pyplot.close(figure)
    return file.getvalue()


def write(where: epath.Path, title: str, numbers: Sequence[Number]) -> list[epath.Path]:
    """The three files, each whole or not at all."""
    content = {"table.md": markdown(title, numbers, "table.png").encode(), "table.csv": table(numbers).encode(),
               "table.png": picture(numbers)}
    for name, raw in content.items():
        with on_disk(where / name):
            folder.whole(where / name, raw)
    return [where / name for name in content]


def shown(one: Number) -> Table:
    """For the screen."""
    found = Table(*HEAD, title=escape(f"{one.readout}: {one.name}"))
    for variant, of in one.variants.items():
        found.add_row(*map(escape, cells(variant, of)))
    return found
