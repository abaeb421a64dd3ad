"""TensorBoard: the numbers arrive, and a disk that fails is one line, never a wait."""
import json
import struct
import time

import pytest
import wandb
from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog

from ptmjax.cli.watchers import TensorBoard, Wandb, check_wandb
from ptmjax.types import UserError

HELD = {"step": 6, "set": "validation", "loss": 2.5, "accuracy": None}


def events(folder):
    """Those of the one file of the folder: a record is its length (8 bytes), the sum of that (4), the event, its sum (4)."""
    (path,) = folder.glob("events.out.tfevents.*")
    raw, at = path.read_bytes(), 0
    while at < len(raw):
        (n,) = struct.unpack_from("<Q", raw, at)
        yield Event.FromString(raw[at + 12 : at + 12 + n])
        at += 16 + n


def test_what_is_written(tmp_path):
    """An evaluation brings all until then to disk; what lies past step 4 of an earlier file is purged."""
    board = TensorBoard(epath.Path(tmp_path / "tensorboard"), 4)
    board.trained({"step": 5, "loss": 1.5, "skipped": True, "rate": None}, 2.0, 10)
    board.evaluated(HELD)
    version, begin, *rest = events(tmp_path / "tensorboard")
    assert version.file_version == "brain.Event:2" and (begin.step, begin.session_log.status) == (5, SessionLog.START)
    found = [(e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in rest]
    assert found == [(5, {"train/loss": 1.5, "train/skipped": 1.0, "train/tokens_per_second": 5.0}), (6, {"validation/loss": 2.5})]
    assert all(e.wall_time > 1e9 for e in (version, begin, *rest))
    board.close()


def test_a_full_disk_is_one_line_at_once(tmp_path):
    board = TensorBoard(epath.Path(tmp_path / "tensorboard"), 0)
    board.file._py_recordio_writer._writer = open("/dev/full", "wb")
    board.trained({"step": 5, "loss": 1.5}, 2.0, 10)  # in memory
    for act in (lambda: board.evaluated(HELD), board.close):
        with pytest.raises(UserError, match="tensorboard cannot be written .No space left on device.: mend the disk and start again"):
            act()
    with pytest.raises(UserError, match="No space left"):
        for step in range(10_000):
            board.trained({"step": step, "loss": 1.5}, 2.0, 10)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(UserError, match="tensorboard cannot be written .*: move what lies there away"):
        TensorBoard(epath.Path(tmp_path / "tensorboard"), 0)


# ------------------------------------------------------------------ Weights & Biases
def records(path):
    """Of a W&B file: 7 bytes, then blocks of 32 KiB with fragments (sum 4, length 2, kind 1: whole, first, middle, last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(raw):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        n, kind = struct.unpack_from("<HB", raw, at + 4)
        parts.append(raw[at + 7 : at + 7 + n])
        at += 7 + n
        if kind in (1, 4):
            yield Record.FromString(b"".join(parts))
            parts = []


def test_wandb_goes_on_in_the_same_run_with_steps_as_axis(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder, history, runs, axes, said = epath.Path(tmp_path / "run"), [], [], set(), []
    folder.mkdir()
    for turn in range(2):  # the second goes on from before step 5
        time.sleep(1.1 * turn)  # wandb names the files of a run in no network by the second
        board = Wandb("team/project", folder, {"Block.rate": "0.1"}, said.append)
        board.trained({"step": 5, "loss": 1.5, "skipped": False, "rate": None}, 2.0, 10)
        board.evaluated(HELD)
        board.close()
    board.write("train", {"step": 7, "loss": 1.0})  # of a run that is finished there, which wandb refuses: said once
    board.close()
    assert len(said) == 1 and "Weights & Biases fails (" in said[0] and "the run goes on without it" in said[0]
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.HasField("run"):
                runs.append((record.run.entity, record.run.project, record.run.run_id, record.run.display_name))
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("metric"):
                axes.add((record.metric.glob_name, record.metric.step_metric))
            if record.HasField("history"):
                of = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                history.append({name: x for name, x in of.items() if not name.startswith("_")})
    assert set(runs) == {("team", "project", (folder / "wandb.id").read_text(), "run")} and config["Block.rate"] == "0.1"
    assert ("*", "step") in axes
    assert history == [{"step": 5, "train/loss": 1.5, "train/skipped": 0, "train/tokens_per_second": 5}, {"step": 6, "validation/loss": 2.5}] * 2


def test_wandb_that_cannot_be_written_to(tmp_path, monkeypatch):
    for name in ("", "a/b/c", "/b", "a/", "p#?:%", "a" * 300):
        with pytest.raises(UserError, match="names no project: write --wandb=PROJECT, or --wandb=TEAM/PROJECT"):
            check_wandb(name)
    check_wandb(None)
    wandb.teardown()  # it reads the environment once
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(UserError, match="^--wandb=project: .*`wandb login`"):
        Wandb("project", epath.Path(tmp_path), {}, print)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="--wandb needs the package wandb: pip install wandb"):
        check_wandb("project")
