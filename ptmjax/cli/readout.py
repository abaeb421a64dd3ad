"""What a masked model learnt from context, against what is reached without: numbers, a table, a curve."""
import json
from collections.abc import Mapping

import numpy as np
from etils import epath
from rich.table import Table

from ptmjax.cli.experiment import Data
from ptmjax.data.masking import Masking
from ptmjax.training.metrics import read_lines


def baselines(data: Data, batch: int = 256) -> dict[str, float]:
    """On the scored positions of the held-out readout: `unigram` (cross entropy of the training counts plus one), `majority`
    (accuracy of always naming the most frequent training token), both with every scored position shown as [MASK]; and
    `no_context_bound` of the training corruption (masking.no_context_bound), where it has one."""
    counts = data.training.counts.astype(np.float64)
    loss = -np.log((counts + 1) / (counts + 1).sum())
    total, hits, weight = 0.0, 0.0, 0.0
    n = len(data.validation) if data.stage.heldout is None else min(data.stage.heldout, len(data.validation))
    for begin in range(0, n, batch):
        rows = data.heldout_source.examples(np.arange(begin, min(n, begin + batch)))
        w, targets = rows["weights"], rows["targets"]
        total += float((w * loss[targets]).sum())
        hits += float((w * (targets == counts.argmax())).sum())
        weight += float(w.sum())
    out = {"unigram": total / weight, "majority": hits / weight}
    corruption = data.source.corruption
    return out | ({"no_context_bound": corruption.bound(counts)["bound"]} if isinstance(corruption, Masking) else {})


def summary(workdir: epath.Path, data: Data) -> dict:
    """The last evaluation beside its baselines, written to summary.json."""
    lines = read_lines(workdir / "metrics.jsonl")
    last = [line for line in lines if "set" in line][-1]
    seconds = read_lines(workdir / "timing.jsonl")
    out = {"step": last["step"], "loss": last["mlm"], "accuracy": last["accuracy"], "records": last["records"]} | baselines(data)
    out |= {"seconds": round(sum(line["seconds"] for line in seconds), 1), "tokens": sum(line["tokens"] for line in seconds)}
    (workdir / "summary.json").write_text(json.dumps(out, indent=1) + "\n")
    return out


def table(found: Mapping, control: Mapping | None) -> Table:
    """Held out, every scored position shown as [MASK]."""
    out = Table(title="held out, every scored position shown as \\[MASK]")
    for name in ("", "loss (nats)", "accuracy"):
        out.add_column(name, justify="left" if not name else "right")
    out.add_row("this run", f"{found['loss']:.3f}", f"{found['accuracy']:.3f}", style="bold")
    if control:
        out.add_row(f"recorded control: attention cut to the own position, {control['step']} steps", f"{control['loss']:.3f}", f"{control['accuracy']:.3f}")
    out.add_row("unigram of the training text / most frequent token", f"{found['unigram']:.3f}", f"{found['majority']:.3f}")
    if "no_context_bound" in found:
        out.add_row("no-context bound of the training loss (kept tokens can be copied)", f"{found['no_context_bound']:.3f}", "")
    return out


def curve(workdir: epath.Path, found: Mapping) -> epath.Path:
    """curve.png: training and held-out loss over steps, with the unigram line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_lines(workdir / "metrics.jsonl")
    train = [(line["step"], line["mlm"]) for line in lines if "set" not in line and line["mlm"] is not None]
    held = [(line["step"], line["mlm"]) for line in lines if "set" in line]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*train), color="tab:blue", alpha=0.35, linewidth=1, label="training batches (corrupted)")
    axes.plot(*zip(*held), color="tab:orange", marker="o", markersize=3, label="held out, every scored position [MASK]")
    axes.axhline(found["unigram"], color="gray", linestyle="--", linewidth=1, label="unigram")
    axes.set(xlabel="step", ylabel="masked-token loss (nats)", title=f"accuracy {found['accuracy']:.3f} held out")
    axes.legend()
    with (workdir / "curve.png").open("wb") as file:
        figure.savefig(file, dpi=120, format="png")
    pyplot.close(figure)
    return workdir / "curve.png"
