"""TensorBoard: the numbers arrive, and a disk that fails is one line, never a wait."""
import struct

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog

from ptmjax.cli.watchers import TensorBoard
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
