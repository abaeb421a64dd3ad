"""Where numbers go: metrics.jsonl (deterministic, cut on resume), timing.jsonl, TensorBoard."""
import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from etils import epath

from ptmjax.types import Sum, UserError


def number(x) -> float | int | bool | None:
    """A value as JSON has it; what is not finite (a skipped step) is null."""
    x = np.asarray(x).item()
    return x if isinstance(x, (bool, int)) else round_trip(x) if math.isfinite(x) else None


def round_trip(x: float) -> float:
    """The shortest decimal that gives the same float32: lines stay short and resume bit-equal."""
    return float(str(np.float32(x)))


class Lines:
    """A file of JSON lines with a `step` each. On opening, lines past step `keep` (and a half-written last one) are cut.

    A disk that is full or cannot be written is a UserError. `say` hears where the file of a run that stands at step `keep` is
    gone or empty: nothing brings its lines back, and the checkpoints are whole, so the run goes on.
    """

    def __init__(self, path: epath.PathLike, keep: int, say: Callable[[str], None] = print):
        self.path = epath.Path(path)
        if keep and not self.path.exists():
            say(f"{path} is gone: the lines of steps 1 to {keep} are lost, the run goes on without them")
        elif keep and not self.path.stat().length:  # emptied, or none was due
            say(f"{path} holds no line of the steps 1 to {keep} that are done, the run goes on without them")
        with on_disk(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in read_lines(self.path) if line["step"] <= keep)
            if not self.path.exists() or self.path.read_text() != text:
                fresh = self.path.with_name(self.path.name + ".new")
                fresh.write_text(text)
                fresh.replace(self.path)
            self.file = self.path.open("a")

    def write(self, line: Mapping) -> None:
        with on_disk(self.path):
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def close(self) -> None:
        with on_disk(self.path):
            self.file.close()


class Files:
    """metrics.jsonl and timing.jsonl of a run folder, cut to the first `keep` steps: who writes down what is trained."""

    def __init__(self, folder: epath.PathLike, keep: int, say: Callable[[str], None] = print):
        self.metrics, self.timing = (Lines(epath.Path(folder) / name, keep, say) for name in ("metrics.jsonl", "timing.jsonl"))

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        self.metrics.write(line)
        self.timing.write({"step": line["step"], "seconds": round(seconds, 4), "tokens": tokens})

    def evaluated(self, line: Mapping) -> None:
        self.metrics.write(line)

    def close(self) -> None:
        self.metrics.close()
        self.timing.close()


@contextlib.contextmanager
def on_disk(path: epath.Path) -> Iterator[None]:
    """A fault of the disk becomes one line."""
    try:
        yield
    except OSError as e:
        in_the_way = isinstance(e, (IsADirectoryError, NotADirectoryError, FileExistsError))
        remedy = "move what lies there away" if in_the_way else "mend the disk"
        raise UserError(f"{path} cannot be written ({e.strerror or e}): {remedy} and start again") from e


def read_lines(path: epath.PathLike, *needed: str) -> list[dict]:
    """The whole lines of a file that a killed process may have left half-written; [] where there is none.

    A line that is no JSON object with a number under `step` and each of `needed`, or has a list, an object or a number beyond floats
    anywhere, is a UserError.
    """
    path = epath.Path(path)
    if not path.exists():
        return []
    try:
        whole = path.read_bytes().split(b"\n")[:-1]
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror or e}): mend that, or move it away, and start again") from e
    return [parsed(path, number, line, ("step", *needed)) for number, line in enumerate(whole, 1)]


def parsed(path: epath.Path, number: int, line: bytes, needed: Sequence[str]) -> dict:
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path}:{number} is not JSON ({e}): delete that line and start again") from e
    for name in needed:
        if not isinstance(found, dict) or type(found.get(name)) not in (int, float):
            raise UserError(f"{path}:{number} has no number {name!r}: delete that line and start again")
    for name, x in found.items():
        if isinstance(x, list | dict) or isinstance(x, int) and x.bit_length() > 1000:  # nor does a float hold such a one
            raise UserError(f"{path}:{number} has no number {name!r}: delete that line and start again")
    return found


class Totals:
    """Sums of a whole evaluation, added in float64 over batches: ratios are taken once, at the end."""

    def __init__(self):
        self.value: dict[str, float] = {}
        self.weight: dict[str, float] = {}

    def add(self, sums: Mapping[str, Sum]) -> None:
        for name, s in sums.items():
            self.value[name] = self.value.get(name, 0.0) + float(s.value)
            self.weight[name] = self.weight.get(name, 0.0) + float(s.weight)

    def means(self) -> dict[str, float]:
        return {name: v / self.weight[name] if self.weight[name] else 0.0 for name, v in self.value.items()}
