"""What the benchmarks share: medians, ratios and tables."""
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence


def best(call: Callable, times: int = 4) -> float:
    """Seconds of the fastest of several calls."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times as fast ours is, from seconds measured in turn: the ratio of the medians, and the quartiles of the ratios of
    the turns, which say how far to trust it."""
    turns = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(turns, n=4, method="inclusive") if len(turns) > 1 else turns * 3
    return {"of_medians": statistics.median(theirs) / statistics.median(ours), "low": low, "high": high}


def told(found: dict[str, float]) -> str:
    return f"{found['of_medians']:.2f} ({found['low']:.2f} - {found['high']:.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, columns aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    line = lambda cells: "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths)) + " |"
    return "\n".join([line(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)])


def take_cores(wanted: int | None) -> int:
    """Holds this process, and those that it starts, to so many of the cores it may use (None: all); how many they are."""
    mine = sorted(os.sched_getaffinity(0))
    if wanted is not None:
        mine = mine[:wanted]
        os.sched_setaffinity(0, mine)
    return len(mine)


def needs(*modules: str) -> None:
    """Ends with one line and code 2 where a peer's library is not installed."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        print(f"no {' and no '.join(missing)} here, the benchmark needs the parity extra: pip install -e '.[test,parity]'", file=sys.stderr)
        raise SystemExit(2)
