"""Every demo and its control trained on the shipped text, and a table of what they read out of held-out records.

python -m tests.readouts FOLDER [--record] [settings of `ptmjax train`]     --record: the controls become gin/<name>.control.json
A second call goes on where the first stopped.
"""
import json
import shlex
import subprocess
import sys
from pathlib import Path

from ptmjax import gin_folder
from ptmjax.cli import readout

OWN = ("--gin.Context.see=@masks.own", "attention cut to the own position")
CONTROLS = {"bert_demo": OWN, "bert_nsp_demo": OWN, "electra_demo": OWN, "ernie_demo": OWN,
            "t5_demo": ("--gin.decoder/Context.cross=@masks.nothing", "the input out of the decoder's sight")}


def trained(name: str, folder: Path, words: list[str]) -> dict:
    """The summary.json of a run."""
    subprocess.run([sys.executable, "-m", "ptmjax", "train", f"--gin_file={name}.gin", f"--workdir={folder}", *words], check=True)
    return json.loads((folder / "summary.json").read_text())


def rows(found: dict, control: dict) -> list[tuple[str, float, float, float]]:
    """(what, of the run, of its control, without context)."""
    out = []
    if names := readout.tokens(found):
        out = [(name, found[name], control[name], found[without]) for name, without in zip(names, ("unigram", "majority"))]
    of_control = {what: x for what, x, _ in readout.measures(control)}
    return out + [(what, x, of_control[what], without) for what, x, without in readout.measures(found)]


def record(name: str, control: dict, words: list[str]) -> None:
    binding, what = CONTROLS[name]
    command = shlex.join(["ptmjax", "train", f"--gin_file={name}.gin", "--workdir=control", *words, binding])
    held = {"command": command, "control": what, **{k: x for k, x in control.items() if k != "seconds"}}
    (gin_folder() / f"{name}.control.json").write_text(json.dumps(held, indent=1) + "\n")


def main(folder: str, *words: str) -> None:
    keep = [word for word in words if word != "--record"]
    table = ["| | held out | run | control | without context |", "|---|---|---|---|---|"]
    for name, (binding, _) in CONTROLS.items():
        found = trained(name, Path(folder) / name, keep)
        control = trained(name, Path(folder) / f"{name}_control", [*keep, binding])
        if len(keep) < len(words):
            record(name, control, keep)
        table += [f"| {name} | {what} | {' | '.join(map(readout.shown, numbers))} |" for what, *numbers in rows(found, control)]
    print("\n".join(table))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
