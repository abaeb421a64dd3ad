import os
import threading

import pytest

from ptmjax.data import cache
from ptmjax.types import UserError


def test_what_is_made_is_there_whole_or_not_at_all(tmp_path):
    with cache.making(tmp_path / "new" / "cache") as part:
        (part / "a").write_text("x")
        assert [p.name for p in (tmp_path / "new" / "cache").iterdir()] == [part.name]
        assert cache.keep(part / "a", part.parent / "a").read_text() == "x"
    assert [p.name for p in part.parent.iterdir()] == ["a"]
    with pytest.raises(KeyError), cache.making(tmp_path / "new" / "cache") as part:
        (part / "b").write_text("x")
        raise KeyError
    assert [p.name for p in part.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("folder", [False, True])
def test_of_two_at_once_the_first_stays(tmp_path, folder):
    """Both are in the making before either is named."""
    both, kept = threading.Barrier(2), []

    def make():
        with cache.making(tmp_path) as part:
            (part / "a").write_text("x")
            both.wait(60)
            kept.append(cache.keep(part if folder else part / "a", tmp_path / "made"))

    threads = [threading.Thread(target=make) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert kept == [tmp_path / "made"] * 2 and [p.name for p in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "a" if folder else tmp_path / "made").read_text() == "x"
    assert not folder or (tmp_path / "made").stat().st_mode & 0o777 == 0o755


def test_what_killed_processes_left_is_removed_and_what_others_make_is_not(tmp_path):
    for name in (f".part-{cache.host()}-x", ".part-elsewhere-x", ".part-elsewhere-y", "other"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".part-elsewhere-y", (1e9, 1e9))
    with cache.making(tmp_path) as first, cache.making(tmp_path) as second:
        assert {p.name for p in tmp_path.iterdir()} == {first.name, second.name, ".part-elsewhere-x", "other"}


def test_a_folder_taken_for_a_leftover_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """The other process sweeps between making and opening it, and between opening and locking it."""
    mkdtemp, flock, made = cache.tempfile.mkdtemp, cache.fcntl.flock, []

    def make(**about):
        made.append(mkdtemp(**about))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    def lock(*about):
        if len(made) == 2:
            os.rmdir(made[1])
        return flock(*about)

    monkeypatch.setattr(cache.tempfile, "mkdtemp", make)
    monkeypatch.setattr(cache.fcntl, "flock", lock)
    part, held = cache.new(tmp_path)
    assert len(made) == 3 and str(part) == made[2] and part.exists()
    os.close(held)


def test_what_the_system_refuses_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the data cache in .*file/cache .*: make room there, or name another --cache"):
        with cache.making(tmp_path / "file" / "cache"):
            pass
    with pytest.raises(UserError, match=r"cannot rename .* to .*none/a: check"), cache.making(tmp_path) as part:
        cache.keep(part, tmp_path / "none" / "a")
