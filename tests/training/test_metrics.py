"""Lines that survive a kill at any byte, and sums of a whole evaluation."""
import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptmjax.training.metrics import Lines, Totals, number, read_lines, round_trip
from ptmjax.types import Sum, UserError

LINES = [{"step": 1, "loss": 4.25}, {"step": 2, "loss": None}, {"step": 2, "set": "heldout", "loss": 0.1}, {"step": 3, "loss": 1e-07}]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)


@pytest.mark.parametrize("keep, lines", [(0, 0), (1, 1), (2, 3), (3, 4), (9, 4)])
def test_lines_past_the_restored_step_are_cut(tmp_path, keep, lines):
    path = tmp_path / "metrics.jsonl"
    path.write_text(TEXT)
    log = Lines(path, keep)
    assert path.read_text() == "".join(TEXT.splitlines(keepends=True)[:lines])
    log.write({"step": keep + 1})
    log.close()
    assert read_lines(path) == [*LINES[:lines], {"step": keep + 1}]


@pytest.mark.parametrize("cut", range(0, len(TEXT) + 1, 7))
def test_a_file_cut_at_any_byte_goes_on_with_whole_lines(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    path.write_text(TEXT[:cut])
    Lines(path, 9).close()
    whole = TEXT[:cut].rpartition("\n")
    assert path.read_text() == whole[0] + whole[1]


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    log = Lines(tmp_path / "new" / "metrics.jsonl", 0)
    log.write(LINES[0])
    assert read_lines(log.path) == LINES[:1]
    log.close()


def test_no_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="metrics.jsonl cannot be written .*move what lies there away"):
        Lines(tmp_path / "file" / "metrics.jsonl", 0)


def test_a_full_disk_is_told_in_one_line(tmp_path):
    log = Lines(tmp_path / "metrics.jsonl", 0)
    log.file.close()
    log.file = open("/dev/full", "a")
    for act in (lambda: log.write(LINES[0]), log.close):
        with pytest.raises(UserError, match="metrics.jsonl cannot be written .No space left on device.: mend the disk"):
            act()


def test_a_line_that_is_not_ours_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(TEXT + "loss 3.4\n")
    with pytest.raises(UserError, match="metrics.jsonl:5 is not JSON"):
        Lines(path, 9)
    assert path.read_text() == TEXT + "loss 3.4\n"


@pytest.mark.parametrize("line, needed, words", [
    (b"\xff\xfe\x00", (), "is not JSON"), (b"[" * 100_000, (), "is not JSON"), (b'{"a":1}', (), "no number 'step'"), (b"[1]", (), "no number 'step'"),
    (b"3", (), "no number 'step'"), (b'{"step":"a"}', (), "no number 'step'"), (b'{"step":true}', (), "no number 'step'"),
    (b'{"step":3,"loss":[]}', (), "no number 'loss'"), (b'{"step":3,"loss":{"a":1}}', (), "no number 'loss'"), (b'{"step":3,"loss":%s}' % (b"9" * 400), (), "no number 'loss'"),
    (b'{"step":3}', ("seconds",), "no number 'seconds'"), (b'{"step":3,"seconds":null}', ("seconds",), "no number 'seconds'")],
    ids=range(12))
def test_a_damaged_line_is_named(tmp_path, line, needed, words):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "seconds": 2}\n' + line + b"\n")
    with pytest.raises(UserError, match=f"metrics.jsonl:2 (is|has) .*{words.removeprefix('is ')}.*: delete that line and start again") as e:
        read_lines(path, *needed)
    assert "\n" not in str(e.value)


def test_a_file_in_the_way_is_told_in_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match="metrics.jsonl cannot be read .*: mend that, or move it away"):
        Lines(tmp_path / "metrics.jsonl", 0)


def test_lines_that_are_gone_are_told(tmp_path):
    said = []
    Lines(tmp_path / "metrics.jsonl", 0, said.append).close()
    Lines(tmp_path / "metrics.jsonl", 4, said.append).close()
    assert len(said) == 1 and "metrics.jsonl holds no line of the steps 1 to 4 that are done, the run goes on" in said.pop()
    (tmp_path / "metrics.jsonl").unlink()
    Lines(tmp_path / "metrics.jsonl", 4, said.append).close()
    assert len(said) == 1 and "metrics.jsonl is gone: the lines of steps 1 to 4 are lost, the run goes on without them" in said[0]


# ------------------------------------------------------------------ numbers
@pytest.mark.parametrize("x, expected", [
    (jnp.float32(0.1), 0.1), (np.float64("nan"), None), (jnp.inf, None), (jnp.bool_(True), True), (jnp.int32(7), 7), (2.0, 2.0)])
def test_numbers_as_json_has_them(x, expected):
    found = number(x)
    assert found == expected and type(found) is type(expected)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_decimals_give_the_same_float32(x):
    assert np.float32(json.loads(json.dumps(round_trip(x)))) == np.float32(x)


def test_decimals_are_short():
    assert json.dumps(round_trip(np.float32(0.1))) == "0.1" and json.dumps(round_trip(np.float32(1) / 3)) == "0.33333334"


# ------------------------------------------------------------------ totals
def test_ratios_are_taken_once():
    """One record in a last batch weighs as one record, not as one batch."""
    totals = Totals()
    totals.add({"loss": Sum(jnp.float32(6), jnp.float32(3)), "hit": Sum(jnp.float32(1), jnp.float32(2))})
    totals.add({"loss": Sum(jnp.float32(10), jnp.float32(1)), "hit": Sum(jnp.float32(0), jnp.float32(0))})
    assert totals.means() == {"loss": 4.0, "hit": 0.5}


def test_nothing_counted_is_zero():
    totals = Totals()
    totals.add({"loss": Sum(jnp.float32(0), jnp.float32(0))})
    assert totals.means() == {"loss": 0.0}


def test_totals_do_not_saturate():
    """In float32, 2 ** 24 + 1 is 2 ** 24."""
    totals = Totals()
    for value in (2.0**24, 1.0, 1.0):
        totals.add({"n": Sum(jnp.float32(value), jnp.float32(1))})
    assert totals.means() == {"n": (2.0**24 + 2) / 3}
