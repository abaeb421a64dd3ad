"""What a masked model learnt from context, against what is reached without: numbers, a table, a curve."""
import json
from collections.abc import Mapping

import numpy as np
from etils import epath
from rich.table import Table

from ptmjax.cli import folder
from ptmjax.cli.experiment import VALIDATION, Data
from ptmjax.training.metrics import on_disk, read_lines
from ptmjax.types import UserError


def baselines(data: Data) -> dict[str, float]:
    """On the scored positions held out: `unigram` (cross entropy of the training counts plus one) and `majority` (accuracy of
    always naming the most frequent training token), both over the ids that can be targets: the ordinary ones, and what is scored
    besides; and `no_context_bound` of the training corruption, where its method `bound`, from the counts, tells one
    (masking.no_context_bound)."""
    if not {"weights", "targets"} <= data.heldout_source.spec.keys():
        return {}
    counts = data.training.counts.astype(np.float64)
    scored = weight_of_ids(data, len(counts))
    if not scored.any():
        return {}
    can = np.union1d(data.task.vocabulary.ordinary, scored.nonzero()[0])
    p, share = (counts[can] + 1) / (counts[can] + 1).sum(), scored[can] / scored.sum()
    out = {"unigram": float(-(share * np.log(p)).sum()), "majority": float(share[p.argmax()])}
    bound = getattr(data.parts[0].corruption, "bound", lambda counts: {})(counts) if len(data.parts) == 1 else {}
    return out | ({"no_context_bound": bound["bound"]} if "bound" in bound else {})


def weight_of_ids(data: Data, size: int, batch: int = 256) -> np.ndarray:
    """[V]: with how much weight each id is a target held out."""
    out = np.zeros(size)
    for part in data.parts:
        n = part.shown(data.stage.heldout)
        for begin in range(0, n, batch):
            rows = part.heldout_source.examples(np.arange(begin, min(n, begin + batch)))
            out += np.bincount(rows["targets"].ravel(), rows["weights"].ravel(), size)
    return out


def summary(workdir: epath.Path, data: Data) -> dict:
    """The last evaluation beside its baselines, written to summary.json."""
    lines = read_lines(workdir / "metrics.jsonl")
    last = next((line for line in reversed(lines) if line.get("set") == VALIDATION), None)
    if last is None:
        raise UserError(f"{workdir / 'metrics.jsonl'} holds no evaluation (was the file removed, or the run cut before its first?): "
                        f"`ptmjax eval --workdir={workdir}` measures the newest checkpoint")
    timing = read_lines(workdir / "timing.jsonl", "seconds", "tokens")
    out = last | baselines(data)
    out |= {"seconds": round(sum(line["seconds"] for line in timing), 1), "tokens": sum(line["tokens"] for line in timing)}
    if sets := {line["set"].removeprefix(f"{VALIDATION}/"): line for line in lines if "set" in line and line["step"] == last["step"]
                and line is not last}:
        out["tasks"] = {name: {what: x for what, x in line.items() if what not in ("step", "set")} for name, line in sets.items()}
    told = folder.text(data)
    out |= {"data": {name: told[name] for name in ("task", "train", "vocabulary")}}
    with on_disk(workdir / "summary.json"):
        (workdir / "summary.json").write_text(json.dumps(out, indent=1) + "\n")
    return out


def control(path: epath.Path, found: Mapping) -> Mapping | None:
    """The summary.json of a control run that lies beside a gin file, None where there is none.

    Raises:
        UserError: it is damaged, lacks a number of `found` that a table shows, or is of another task, text or vocabulary.
    """
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as e:
        raise _no_control(path, f"cannot be read ({getattr(e, 'strerror', None) or e})") from e
    if not isinstance(held, dict) or not isinstance(held.get("data"), dict) or type(held.get("step")) is not int:
        raise _no_control(path, "does not say of what data and how many steps it is")
    if other := [name for name, x in found["data"].items() if held["data"].get(name) != x]:
        about = ", ".join(folder.MEANING[name] for name in other)
        raise UserError(f"the recorded control {path.name} is of other data ({about}) and not shown: a control goes with one text")
    wanted = [*(tokens(found) or ()), *(name for name in found if name in ("f1", "replaced") or "_recall_" in name)]
    if lacks := [name for name in wanted if type(held.get(name, "")) not in (int, float, type(None))]:
        raise _no_control(path, f"has no number {lacks[0]}, which this objective gives")
    return held


def _no_control(path: epath.Path, why: str) -> UserError:
    return UserError(f"the recorded control {path} {why} and is not shown: copy the summary.json of a control run there, or remove it")


def shown_masked(data: Data) -> str:
    """How the scored positions of the readout are shown, in the corruption's own words (its `view`), where it has any."""
    views = {getattr(part.readout, "view", "") for part in data.parts}
    return views.pop() if len(views) == 1 else ""


TOKENS = (("mlm", "accuracy"), ("mlm", "generator_accuracy"), ("seq2seq", "accuracy"))  # a loss on tokens, and its accuracy


def tokens(found: Mapping) -> tuple[str, str] | None:
    """Names of the loss on tokens and its accuracy, where there is one that the unigram can be held against."""
    return next((pair for pair in TOKENS if {*pair, "unigram"} <= found.keys()), None)


def shown(x: float | None) -> str:
    """A number of an evaluation; None is one that was not finite."""
    return "not finite" if x is None else f"{x:.3f}"


def measures(found: Mapping) -> list[tuple[str, float | None, float | None]]:
    """(what, how much, how much without looking) of the losses that are not on tokens; None where that is not finite."""
    out = []
    for name in sorted({n.removesuffix("_recall_0") for n in found if n.endswith("_recall_0")}):
        recalls = [x for n, x in found.items() if n.startswith(f"{name}_recall_")]
        out.append((f"balanced accuracy of {name}", None if None in recalls else sum(recalls) / len(recalls), 1 / len(recalls)))
    if {"f1", "replaced"} <= found.keys():
        replaced = found["replaced"]
        out.append(("F1 of replaced (calling all replaced)", found["f1"], None if replaced is None else 2 * replaced / (1 + replaced)))
    if "auc" in found:
        out.append(("AUC of replaced, within rows", found["auc"], 0.5))
    return out


def tables(found: Mapping, control: Mapping | None, how: str) -> list[Table]:
    """The numbers held out, beside what is reached without context."""
    out = []
    if (names := tokens(found)) is not None:
        out.append(table(found, control, how, *names))
    if rows := measures(found):
        two = Table("", "this run", *[f"control ({control['step']} steps)"] if control else [], "without looking")
        others = {what: x for what, x, _ in measures(control)} if control else {}
        for what, x, none in rows:
            two.add_row(what, shown(x), *[shown(others[what]) if what in others else ""] * bool(control), shown(none))
        out.append(two)
    return out


def table(found: Mapping, control: Mapping | None, how: str, name: str, accuracy: str) -> Table:
    """Loss and accuracy on tokens."""
    out = Table("", title=f"held out{how}".replace("[", "\\["))
    for column in (f"{name} (nats)", "accuracy"):
        out.add_column(column, justify="right")
    line = lambda what, loss, hits, style="": out.add_row(what, shown(loss), hits if hits == "" else shown(hits), style=style)
    line("this run", found[name], found[accuracy], "bold")
    for task, numbers in found.get("tasks", {}).items():
        line(f"   {task}", numbers[name], numbers[accuracy])
    if control:
        what = f", {control['control']}" if isinstance(control.get("control"), str) else ""
        line(f"recorded control{what} ({control['step']} steps)", control[name], control[accuracy])
    line("unigram of the training text / its most frequent token", found["unigram"], found["majority"])
    if "no_context_bound" in found:
        line("no-context bound of the training loss (kept tokens can be copied)", found["no_context_bound"], "")
    return out


def curve(workdir: epath.Path, found: Mapping, how: str) -> None:
    """curve.png: training and held-out loss over steps, with the unigram line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_lines(workdir / "metrics.jsonl")
    finite = [line for line in lines if line.get("loss") is not None]
    train = [(line["step"], line["loss"]) for line in finite if "set" not in line]
    held = [(line["step"], line["loss"]) for line in finite if line.get("set") == VALIDATION]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*train), color="tab:blue", alpha=0.35, linewidth=1, label="training batches (corrupted)")
    axes.plot(*zip(*held), color="tab:orange", marker="o", markersize=3, label=f"held out{how}")
    if (names := tokens(found)) is not None and found["loss"] == found[names[0]]:  # the loss is that of tokens alone
        axes.axhline(found["unigram"], color="gray", linestyle="--", linewidth=1, label="unigram")
        if "no_context_bound" in found:
            axes.axhline(found["no_context_bound"], color="gray", linestyle=":", linewidth=1, label="no-context bound of the training loss")
    axes.set(xlabel="step", ylabel="loss (nats)")
    axes.legend()
    with on_disk(workdir / "curve.png"), (workdir / "curve.png").open("wb") as file:
        figure.savefig(file, dpi=120, format="png")
    pyplot.close(figure)
