"""A sweep: its logic with commands that only leave what the real ones would, its checks in this process, and once all of it."""
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ptmjax import gin_folder
from ptmjax.cli import comparison, folder, paired, sweep
from ptmjax.cli.children import Children
from ptmjax.cli.main import main
from ptmjax.cli.variants import readouts
from tests.drivers.processes import ROOT, TINY

FILE = """from __gin__ import dynamic_registration
from ptmjax.cli import variants
variants.Sweep.gin_file = "{base}"
variants.Sweep.seeds = 2
variants.Sweep.variants = {variants}
variants.Sweep.readouts = {readouts}
"""
VARIANTS = {"base": [], "wide": ["Block.hidden=48"]}
READOUTS = {"masked": ["eval --task=tiny_en --head=mlm", "mlm", "accuracy"], "parts": ["probe --most=20", "accuracy"]}


def lay(tmp_path, variants=VARIANTS, readouts=READOUTS):
    (tmp_path / "s.gin").write_text(FILE.format(base=TINY, variants=variants, readouts=readouts))
    return ["sweep", str(tmp_path / "s.gin"), f"--workdir={tmp_path / 'w'}", f"--cache={tmp_path / 'cache'}"]


def read(tmp_path):
    return (tmp_path / "w" / "table.csv").read_bytes(), (tmp_path / "w" / "table.md").read_bytes()


# ------------------------------------------------------------------ the logic
class Killed(BaseException):
    """This process, at once."""


class Fake:
    """Children that do in no time what is asked; at call `kill` it is over, before or after the deed, and `codes` of runs are theirs."""

    def __init__(self, kill=-1, after=False, codes=None):
        self.kill, self.after, self.codes, self.calls, self.trained, self.asked = kill, after, codes or {}, 0, [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def deed(self, act):
        self.calls += 1
        if self.calls - 1 == self.kill and not self.after:
            raise Killed
        done = act()
        if self.calls - 1 == self.kill:
            raise Killed
        return done

    def run(self, words):
        return self.deed(lambda: self.train(Path(next(w for w in words if w.startswith("--workdir=")).removeprefix("--workdir="))))

    def train(self, at):
        self.trained.append(at.name)
        if code := self.codes.get(at.name, 0):
            return code
        (at / "checkpoints" / "6").mkdir(parents=True, exist_ok=True)
        return 0

    def heard(self, words):
        if words[0] == "sweep":
            return 0, ""
        option = dict(w.removeprefix("--").partition("=")[::2] for w in words[1:])
        return self.deed(lambda: self.read(words[0], Path(option["workdir"]).name, Path(option["rows"])))

    def read(self, command, name, rows):
        x = len(name) + 0.5 * int(name[-1]) + (command == "probe")
        value = x + np.arange(4.0) * len(name)
        np.savez(rows, document=np.array([1, 1, 2, 3]), **{"mlm/value": value, "mlm/weight": np.ones(4)})
        return 0, f"a word before\n{json.dumps({'step': 6, 'mlm': value.mean(), 'accuracy': x})}\n"


def swept(tmp_path, monkeypatch, fake, *more):
    monkeypatch.setattr(sweep, "Children", lambda: fake)
    return main([*lay(tmp_path), *more])


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch, capsys):
    assert swept(tmp_path, monkeypatch, first := Fake()) == 0
    assert first.trained == ["base-0", "wide-0", "base-1", "wide-1"] and first.calls == 4 + 8
    whole = read(tmp_path)
    rows = list(csv.DictReader(whole[0].decode().splitlines()))
    assert [(r["readout"], r["number"], r["variant"]) for r in rows[:2]] == [("masked", "mlm", "base"), ("masked", "mlm", "wide")]
    assert float(rows[0]["mean"]) == pytest.approx(6 + 0.25 + 1.5 * 6) and rows[1]["difference"] == "0.0" and rows[1]["documents_low"] == "0.0"
    assert swept(tmp_path, monkeypatch, again := Fake()) == 0 and again.calls == 0 and read(tmp_path) == whole
    out = capsys.readouterr().out
    assert "run 4 of 4: wide-1" in out and "table.md" in out
    longer = Fake()
    assert swept(tmp_path, monkeypatch, longer, "--gin.STEPS=12") == 0 and len(longer.trained) == 4  # `ptmjax train` then says what it is


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_it_goes_on(tmp_path, monkeypatch, after):
    monkeypatch.setattr(comparison, "picture", lambda numbers: b"")
    monkeypatch.setattr(paired, "DRAWS", 100)
    (tmp_path / "a").mkdir()
    assert swept(tmp_path / "a", monkeypatch, Fake()) == 0
    for kill in (5, 11) if after else (0, 1):
        (at := tmp_path / f"b{kill}").mkdir()
        with pytest.raises(Killed):
            swept(at, monkeypatch, Fake(kill, after))
        rest = Fake()
        assert swept(at, monkeypatch, rest) == 0 and rest.calls == 12 - kill and read(at) == read(tmp_path / "a")


def test_a_run_that_fails_is_shown_and_tried_again(tmp_path, monkeypatch, capsys):
    assert swept(tmp_path, monkeypatch, Fake(codes={"wide-0": 137, "wide-1": 2})) == 2
    said = capsys.readouterr()
    assert "wide-1 ended with code 2 and is missing" in said.err and "wide" in said.out
    assert "| wide | 0 (missing: 0, 1) | missing | - |" in read(tmp_path)[1].decode()
    assert swept(tmp_path, monkeypatch, Fake(codes={"wide-0": 137})) == 137
    rest = Fake()
    assert swept(tmp_path, monkeypatch, rest) == 0 and rest.trained == ["wide-0"] and b"missing" not in read(tmp_path)[0].split(b"\n", 1)[1]


@pytest.mark.parametrize("code", [130, 143])
def test_a_signal_ends_it(tmp_path, monkeypatch, capsys, code):
    fake = Fake(codes={"wide-0": code})
    fake.run = lambda words, run=fake.run: setattr(fake, "asked", (found := run(words)) in (130, 143)) or found
    assert swept(tmp_path, monkeypatch, fake) == code and fake.trained == ["base-0", "wide-0"]
    assert "the sweep is stopped" in capsys.readouterr().err and not (tmp_path / "w" / "table.md").exists()


def test_files_that_are_half_written_are_made_anew(tmp_path, monkeypatch):
    assert swept(tmp_path, monkeypatch, Fake()) == 0
    whole = read(tmp_path)
    (tmp_path / "w/base-0/sweep.json").write_text("{")
    (tmp_path / "w/base-1/readouts/masked.json").write_text("[1]")
    rest = Fake()
    assert swept(tmp_path, monkeypatch, rest) == 0 and rest.trained == ["base-0"] and rest.calls == 2 and read(tmp_path) == whole


def test_a_training_at_work_is_waited_for(tmp_path, capsys):
    with folder.locked(tmp_path):
        pass
    sweep.awaited(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", f"import fcntl, time; f = open({str(tmp_path / folder.LOCK)!r}, 'r+'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(2)"], stdout=subprocess.PIPE)
    holder.stdout.readline()
    sweep.awaited(tmp_path)
    assert holder.wait() == 0 and capsys.readouterr().out.count("is waited for") == 1


def test_children(tmp_path, capfd):
    with Children() as children:
        assert children.heard(["--version"]) == (0, f"ptmjax {sweep.main.ptmjax.__version__}\n") and children.run(["no"]) == 2
        assert "no command 'no'" in capfd.readouterr().err and not children.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert children.asked and children.run(["list"]) == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ------------------------------------------------------------------ the checks
@pytest.mark.parametrize("variants, readouts, words", [
    ({"base": [], "wide": ["DD=3"]}, READOUTS, ["variant 'wide'", "DD", "nearest: 'D'"]),
    ({"base": ["Stage.steps='x'"]}, READOUTS, ["variant 'base'", "Stage.steps wants int"]),
    ({"base": ["nothere.gin"]}, READOUTS, ["variant 'base'", "no gin file 'nothere.gin'"]),
    (VARIANTS, {"m": ["evil --head=mlm", "mlm"]}, ["readout 'm': no command 'evil'"]),
    (VARIANTS, {"m": ["list", "mlm"]}, ["readout 'm': list is no readout"]),
    (VARIANTS, {"m": ["eval --haed=mlm", "mlm"]}, ["readout 'm': unknown option '--haed'"]),
    (VARIANTS, {"m": ["eval --head=nsp", "mlm"]}, ["variant 'base': readout 'm'", "--head=nsp: no networks of the run have it", "mlm of model"]),
    (VARIANTS, {"m": ["eval --task=tiny_en --head=mlm", "mml"]}, ["readout 'm' has no number 'mml'", "mlm"]),
    (VARIANTS, {"m": ["probe --layer=9", "accuracy"]}, ["readout 'm'", "layer 9: the encoder has 2"]),
])
def test_a_fault_is_one_line_before_anything_starts(tmp_path, capsys, variants, readouts, words):
    assert main([*lay(tmp_path, variants, readouts), "--dry_run"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("ptmjax: error: ") and err.count("\n") == 1 and all(word in err for word in words) and not out, err
    assert not (tmp_path / "w").exists()


def test_the_plan(tmp_path, capsys, monkeypatch):
    """What --dry_run, --print and --jobs tell, each readout asked of the folder of its run; folders of other settings are refused."""
    asked, check = [], sweep.check_readout
    monkeypatch.setattr(sweep, "check_readout", lambda readout, module, parsed, experiment: asked.append(parsed.workdir.name) or check(readout, module, parsed, experiment))
    assert main([*lay(tmp_path), "--seeds=1", "--gin.STEPS=4", "--dry_run"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "2 runs, 2 of them not done, each read out as masked, parts"
    assert asked == ["base-0", "base-0", "wide-0", "wide-0"]
    wanted = ["ptmjax", "train", f"--gin_file={TINY}", "--gin.Block.hidden=48", "--gin.STEPS=4", "--gin.Experiment.seed=0", f"--workdir={tmp_path / 'w' / 'wide-0'}", f"--cache={tmp_path / 'cache'}"]
    assert shlex.split(lines[1]) == wanted
    (tmp_path / "w/base-0").mkdir(parents=True)
    (tmp_path / "w/base-0/config.gin").write_text("D = 8\nSTEPS = 9\n")
    assert main([*lay(tmp_path), "--seeds=1", f"--jobs={tmp_path / 'jobs'}"]) == 2
    err = capsys.readouterr().err
    assert "variant 'base': --workdir" in err and "holds another run (D: 8 -> 16" in err and err.count("\n") == 1 and not (tmp_path / "jobs").exists()


def test_the_shipped_files():
    """Their form, and that what they say is a sweep; tests/test_docs.py checks one whole."""
    files = sorted((gin_folder() / "sweeps").glob("*.gin"))
    assert files
    for path in files:
        found = sweep.load(f"sweeps/{path.name}")
        assert len(found.variants) > 1 and readouts(found) and path.read_text().startswith("# ") and " arXiv " in path.read_text()


def test_a_file_that_is_not_there_is_one_line(capsys):
    assert main(["sweep", "sweeps/masking_rte.gin", "--workdir=x"]) == 2
    assert "sweep: no gin file 'sweeps/masking_rte.gin'" in (err := capsys.readouterr().err) and "nearest: 'masking_rate.gin'" in err



# ------------------------------------------------------------------ all of it
def started(words, log):
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"}
    return subprocess.Popen([sys.executable, "-m", "ptmjax", *words], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def until(process, path):
    for _ in range(6000):
        if path.exists() or process.poll() is not None:
            return
        time.sleep(0.1)


@pytest.mark.slow
def test_stopped_and_killed_it_ends_as_one_that_was_not(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    words, log = {name: lay(tmp_path / name) for name in ("a", "b")}, (tmp_path / "log").open("w+")
    said = lambda: (tmp_path / "log").read_text()
    assert started(words["a"], log).wait() == 0, said()
    first = started(words["b"], log)
    until(first, tmp_path / "b/w/base-0/checkpoints/2")
    first.terminate()
    assert first.wait() == 143 and "the sweep is stopped" in said(), said()
    second = started(words["b"], log)
    until(second, tmp_path / "b/w/wide-0/checkpoints/2")
    second.kill()
    assert second.wait() == -9 and not (tmp_path / "b/w/table.csv").exists()
    third = started(words["b"], log)
    until(third, tmp_path / "b/w/base-1/readouts/masked.json")
    third.send_signal(signal.SIGINT)
    assert third.wait() == 130, said()
    assert started(words["b"], log).wait() == 0, said()
    assert read(tmp_path / "a") == read(tmp_path / "b")
    rows = list(csv.DictReader(read(tmp_path / "a")[0].decode().splitlines()))
    assert len(rows) == 6 and all(r["missing_seeds"] == "" and r["mean"] for r in rows)
    assert all(r["documents_low"] and r["seeds_low"] for r in rows if r["variant"] == "wide")
    again = subprocess.run([sys.executable, "-m", "ptmjax", "probe", "--most=20", f"--workdir={tmp_path / 'a/w/base-0'}", f"--cache={tmp_path / 'a/cache'}"], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(again.stdout.splitlines()[-1]) == json.loads((tmp_path / "b/w/base-0/readouts/parts.json").read_text())["numbers"]
