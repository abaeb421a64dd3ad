import json
from pathlib import Path

import pytest

from ptmjax.cli import report
from ptmjax.cli.main import main


def run_of(folder, rate, losses, held=True):
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text(f"STEPS = 3\nRATE = {rate}\nptmjax.nn.block.Block.act = 'a|b'\n")
    lines = [{"step": i, "loss": x, "rate": rate} for i, x in enumerate(losses, 1)]
    lines += [{"step": len(losses), "set": "validation", "mlm": 2.0, "loss": losses[-1], "accuracy": 0.25, "records": 7}] * held
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timing.jsonl").write_text('{"step": 1, "seconds": 2.0, "tokens": 1000}\n')
    return str(folder)


def test_runs_side_by_side(tmp_path, capsys):
    runs = [run_of(tmp_path / "a" / "run", 0.1, [3.0, None, 2.5]), run_of(tmp_path / "b" / "run", 0.2, [3.0, 2.0, None])]
    assert main(["report", *runs, f"--out={tmp_path / 'out'}"]) == 0
    page = (tmp_path / "out" / "report.md").read_text()
    for line in ("|  | a/run | b/run |", "| `RATE` | 0.1 | 0.2 |", "| step | 3 | 3 |", "| training loss | 2.5 | not finite |", "| evaluated at step | 3 | 3 |", "| loss | 2.5 | not finite |", "| accuracy | 0.25 | 0.25 |",
                 "| tokens/s | 500 | 500 |"):
        assert line in page, page
    assert "STEPS" not in page and "![curves](report.png)" in page  # what is alike does not show
    assert (tmp_path / "out" / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert "report.md" in (out := capsys.readouterr().out) and "b/run" in out


def test_what_was_held_out_stands_at_its_own_step(tmp_path, capsys):
    """A run that was evaluated before its last step, beside one that never was."""
    runs = [run_of(tmp_path / "a", 0.1, [3.0]), run_of(tmp_path / "b", 0.1, [2.0], held=False)]
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss": 1.5}\n')
    assert main(["report", *runs, f"--out={tmp_path / 'out'}"]) == 0
    page = (tmp_path / "out" / "report.md").read_text()
    for line in ("| step | 2 | 1 |", "| training loss | 1.5 | 2 |", "| evaluated at step | 1 | - |", "| loss | 3 | - |", "| accuracy | 0.25 | - |"):
        assert line in page, page


def test_names_are_those_of_the_folders_and_no_markup(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(run_of(tmp_path / "[bold]x$_{$", 0.1, [3.0]))
    run_of(tmp_path / "other", 0.2, [3.0])
    assert main(["report", ".", "../other", f"--out={tmp_path / 'out'}"]) == 0
    assert "[bold]x$_{$" in capsys.readouterr().out and "|  | [bold]x$_{$ | other |" in (tmp_path / "out" / "report.md").read_text()
    assert main(["report", ".", str(tmp_path / "other" / ".." / "[bold]x$_{$")]) == 2 and "is named twice" in capsys.readouterr().err


@pytest.mark.parametrize("made, fault", [((), "holds no run"), (("config.gin",), "holds no line yet"), (("twice",), "is named twice")])
def test_faults(tmp_path, capsys, made, fault):
    (tmp_path / "x").mkdir()
    for name in made:
        (tmp_path / "x" / name).write_text("STEPS = 1\n")
    assert main(["report", *[str(tmp_path / "x")] * (1 + (made == ("twice",))), f"--out={tmp_path / 'out'}"]) == 2
    assert fault in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", ['[]', '"x"', '{"step": "a"}', '{"step": 2, "loss": []}', '{"step": 2, "set": "validation", "loss": {"a": 1}}'])
def test_a_line_that_holds_no_numbers_is_named(tmp_path, capsys, line):
    given = run_of(tmp_path / "run", 0.1, [3.0], held=False)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert main(["report", given, f"--out={tmp_path / 'out'}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ptmjax: error: {tmp_path}/run/metrics.jsonl:2 has no number ") and err.count("\n") == 1


def test_all_settings_that_differ_are_in_the_file_and_the_screen_says_how_many_are_not_on_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "SETTINGS", 2)
    for name, rate in (("a", 1), ("b", 2)):
        folder = Path(run_of(tmp_path / name, rate, [3.0, 2.0]))
        more = "".join(f"ptmjax.nn.x.Part{i}.size = {rate}\n" for i in range(3)) + f"ptmjax.nn.a.Only{name}.size = 1\n"
        (folder / "config.gin").write_text((folder / "config.gin").read_text() + more)
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), f"--out={tmp_path / 'out'}"]) == 0
    out, page = capsys.readouterr().out, (tmp_path / "out" / "report.md").read_text()
    assert "4 more settings differ: report.md has them" in out and "RATE" in out and "Part2" not in out and "training loss" in out
    assert all(f"Part{i}" in page for i in range(3)) and page.index("RATE") < page.index("Part0") < page.index("Onlya")
