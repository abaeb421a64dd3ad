"""Who looks on while a run trains: a progress bar (plain lines without a terminal) and TensorBoard."""
from collections.abc import Mapping

import rich.progress
import tensorboardX
from etils import epath
from rich.console import Console


def shown(line: Mapping) -> str:
    """Loss and accuracies of a line of metrics.jsonl, "-" for a skipped step."""
    names = ["loss", *(n for n in line if n.endswith("accuracy"))]
    return "  ".join(f"{n} {'-' if line[n] is None else format(line[n], '.3f')}" for n in names)


class Progress:
    """Steps, loss, accuracy, tokens a second and time left."""

    def __init__(self, steps: int, done: int, console: Console):
        columns = ("[bold]{task.completed}/{task.total}", rich.progress.BarColumn(), "{task.fields[shown]}",
                   "{task.fields[speed]} tokens/s", rich.progress.TimeElapsedColumn(), "left",
                   rich.progress.TimeRemainingColumn(elapsed_when_finished=True))
        self.console, self.steps = console, steps
        self.bar = rich.progress.Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("train", total=steps, completed=done, shown="compiling", speed="-")
        self.told = 0

    def __enter__(self) -> "Progress":
        self.bar.start()
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
        self.console.print(f"step {line['step']}  {line['set']}: {shown(line)}  ({line['records']} records)", highlight=False)


class TensorBoard:
    """The same numbers as metrics.jsonl; steps past `done` of a run that was taken up again are purged."""

    def __init__(self, folder: epath.Path, done: int):
        self.writer = tensorboardX.SummaryWriter(str(folder), purge_step=done + 1)

    def trained(self, line: Mapping, seconds: float, tokens: int) -> None:
        self.write("train", line)
        self.writer.add_scalar("train/tokens_per_second", tokens / seconds, line["step"])

    def evaluated(self, line: Mapping) -> None:
        self.write(line["set"], line)

    def write(self, where: str, line: Mapping) -> None:
        for name, x in line.items():
            if name not in ("step", "set") and x is not None:
                self.writer.add_scalar(f"{where}/{name}", x, line["step"])

    def close(self) -> None:
        self.writer.close()
