"""Who looks on while a run trains: a progress bar (plain lines without a terminal), TensorBoard, and Weights & Biases if asked for."""
import contextlib
import importlib.util
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

import rich.progress
from etils import epath
from rich.console import Console

from ptmjax.data.text import first_line
from ptmjax.training.metrics import on_disk
from ptmjax.types import UserError


@contextlib.contextmanager
def hidden(package: str) -> Iterator[None]:
    """Within, a package that is not imported yet seems not to be installed."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None
    try:
        yield
    finally:
        sys.modules.pop(package, None)


with hidden("torch"):  # tensorboardX imports it where it is there: seconds of every command, for what is not used here
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import directory_check


def shown(line: Mapping) -> str:
    """Loss and accuracies of a line of metrics.jsonl, "-" for a skipped step."""
    names = ["loss", *(n for n in line if n.endswith("accuracy"))]
    return "  ".join(f"{n} {'-' if line[n] is None else format(line[n], '.3f')}" for n in names)


def numbers(where: str, line: Mapping) -> dict[str, float]:
    """Those of a line, named "where/name"."""
    return {f"{where}/{name}": float(x) for name, x in line.items() if name not in ("step", "set") and x is not None}


class Progress:
    """Steps, loss, accuracy, tokens a second and time left; how: the view of held-out records, as in the tables."""

    def __init__(self, steps: int, done: int, console: Console, how: str = ""):
        columns = ("[bold]{task.completed}/{task.total}", rich.progress.BarColumn(), "{task.fields[shown]}",
                   "{task.fields[speed]} tokens/s", rich.progress.TimeElapsedColumn(), "left",
                   rich.progress.TimeRemainingColumn(elapsed_when_finished=True))
        self.console, self.steps, self.how = console, steps, how
        self.bar = rich.progress.Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("train", total=steps, completed=done, shown="compiling", speed="-")
        self.told = 0

    def __enter__(self) -> "Progress":
        self.bar.start()
        if not self.console.is_terminal:
            self.console.print("compiling the step", highlight=False)
        return self

    def __exit__(self, *_) -> None:
        self.bar.stop()

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        step, speed = line["step"], f"{tokens / seconds:,.0f}"
        self.bar.update(self.task, completed=step, shown=shown(line), speed=speed)
        if not self.console.is_terminal and (step - self.told >= self.steps / 50 or step == self.steps):
            self.told = step
            self.console.print(f"step {step}/{self.steps}  {shown(line)}  {speed} tokens/s", highlight=False)

    def evaluated(self, line: Mapping) -> None:
        what = f"{line['set']}: {shown(line)}  ({line['records']} records{self.how})"
        self.console.print(f"step {line['step']}  {what}", highlight=False, markup=False)


class TensorBoard:
    """The same numbers as metrics.jsonl; steps past `done` of a run that was taken up again are purged.

    Written by the thread that trains, at once into memory and to disk at every evaluation and at the end: the writer that
    tensorboardX offers first has a thread of its own, which dies of a full disk and then holds up who gives it numbers, for
    ever. Here that is a UserError of one line.
    """

    def __init__(self, folder: epath.Path, done: int):
        self.folder = folder
        with on_disk(folder):
            directory_check(str(folder))
            self.file = EventsWriter(str(folder / "events"))
            self.file.write_event(Event(wall_time=time.time(), step=done + 1, session_log=SessionLog(status=SessionLog.START)))
            self.file.flush()

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        self.write("train", line | {"tokens_per_second": tokens / seconds})

    def evaluated(self, line: Mapping) -> None:
        self.write(line["set"], line)
        with on_disk(self.folder):
            self.file.flush()

    def write(self, where: str, line: Mapping) -> None:
        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers(where, line).items()]
        with on_disk(self.folder):
            self.file.write_event(Event(wall_time=time.time(), step=line["step"], summary=Summary(value=values)))

    def close(self) -> None:
        with on_disk(self.folder):
            self.file.close()


WANDB = "wandb.id"


def check_wandb(project: str | None) -> None:
    """UserError where a project is named that cannot be written to."""
    found = importlib.util.find_spec("wandb") if project is not None else None
    if project is not None and (found is None or found.loader is None):  # a folder of that name has no loader
        raise UserError("--wandb needs the package wandb: pip install wandb (or -e '.[wandb]'), or leave the option out")
    if project is not None and not re.fullmatch(r"([\w.-]+/)?[\w.-]{1,128}", project):
        raise UserError(f"--wandb={project} names no project: write --wandb=PROJECT, or --wandb=TEAM/PROJECT (letters, digits, -_.)")


class Wandb:
    """The same numbers as metrics.jsonl in a project ("project" or "team/project"). The work folder keeps the name of its run there
    (wandb.id), so that a run which is taken up again goes on in it; `step` is a column of its own and the axis of all others, for
    W&B's own count takes no step twice, as a run that goes on from an earlier checkpoint does. Where it fails later, `say` hears of
    it once and the run goes on without."""

    def __init__(self, project: str, folder: epath.Path, settings: Mapping[str, str], say: Callable[[str], None]):
        import wandb

        self.say, self.failed = say, False

        *team, name = project.split("/")
        with on_disk(folder / WANDB):
            known = (folder / WANDB).read_text().strip() if (folder / WANDB).exists() else ""
            if not known:  # or one that a full disk left empty
                (folder / WANDB).write_text(known := uuid.uuid4().hex[:12])
        where = None if "://" in str(folder) else str(folder)
        try:
            self.run = wandb.init(entity="".join(team) or None, project=name, id=known, name=folder.name, dir=where, config=dict(settings),
                                  resume="allow", allow_val_change=True, settings=wandb.Settings(silent=True, console="off"))
        except (wandb.Error, OSError) as e:
            raise UserError(f"--wandb={project}: {first_line(e)} (`wandb login`, or WANDB_MODE=offline)") from e
        self.run.define_metric("*", step_metric="step")

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        self.write("train", line | {"tokens_per_second": tokens / seconds})

    def evaluated(self, line: Mapping) -> None:
        self.write(line["set"], line)

    def write(self, where: str, line: Mapping) -> None:
        self.guarded(self.run.log, {"step": line["step"]} | numbers(where, line))

    def close(self) -> None:
        self.guarded(self.run.finish)

    def guarded(self, act: Callable, *given) -> None:
        if self.failed:
            return
        try:
            act(*given)
        except Exception as e:  # whatever its service, or the network, makes of it
            self.failed = True
            self.say(f"Weights & Biases fails ({type(e).__name__}: {first_line(e)}): the run goes on without it")


class Lost:
    """Says once that scored positions find no slot: they are lost to the loss (a watcher)."""

    def __init__(self, say: Callable[[str], None]):
        self.say, self.told = say, False

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        self.evaluated(line)

    def evaluated(self, line: Mapping) -> None:
        if not self.told and (share := lost(line)):
            self.told = True
            self.say(f"step {line['step']}: {share:.1%} of the scored positions find no slot and are left out of the loss: raise the slots "
                     "of the objective, or lower the rate of the corruption")


def lost(line: Mapping) -> float:
    """The greatest share of scored positions without a slot that a line tells of."""
    return max((x for name, x in line.items() if name.endswith("overflow") and x is not None), default=0.0)
