"""ptmjax cache, without Beam (tests/beam/ has that)."""
import sys

import pytest

from ptmjax.cli.main import main
from ptmjax.data.records import Records


def test_train_finds_what_was_prepared(capsys, tmp_path):
    """Both splits; a second call makes nothing."""
    (tmp_path / "my.txt").write_text("\n\n".join(f"story {i} of the sea and a whale {i * i}. it ends here." for i in range(120)))
    given = ["--gin_file=bert_demo.gin", f"--data={tmp_path / 'my.txt'}", "--vocabulary=bytes", f"--cache={tmp_path / 'cache'}"]
    assert main(["cache", *given]) == 0
    train, validation, told = capsys.readouterr().out.splitlines()[:3]
    found = [Records(train), Records(validation)]
    assert [r.manifest["split"] for r in found] == ["train", "validation"] and all(map(len, found))
    assert f"{len(found[0]):,} training and {len(found[1]):,} validation records" in told
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")}
    assert main(["inspect", *given, "--examples=0"]) == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")} == before


@pytest.mark.parametrize("given, told", [
    (["--gin.T5Block.rate=0.2"], "T5Block"),
    (["--beam", "project=mine"], "--beam and --staging are about --runner"), (["--staging=/tmp"], "--beam and --staging are about --runner"),
    (["--runner=DirectRunner"], '--runner needs the package apache-beam: pip install "ptmjax[beam]"')])
def test_a_users_fault_is_one_line(capsys, monkeypatch, tmp_path, given, told):
    for package in ("apache_beam", "apache_beam.options.pipeline_options"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["cache", "--gin_file=bert_demo.gin", f"--cache={tmp_path / 'cache'}", *given]) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "cache").exists()
