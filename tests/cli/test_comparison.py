import csv
import io

from etils import epath

from ptmjax.cli import comparison

VALUES = {"base": {0: 1.0, 1: 2.0}, "x": {0: 1.5, 1: None}, "gone": {0: None, 1: None}}
ROWS = {name: {} for name in VALUES}


def test_tables(tmp_path):
    one = comparison.number("masked", "mlm", VALUES, ROWS)
    written = comparison.write(epath.Path(tmp_path), "mine", [one, comparison.number("masked", "accuracy", VALUES, ROWS)])
    assert [p.name for p in written] == ["table.md", "table.csv", "table.png"] == sorted((p.name for p in tmp_path.iterdir()), key=["table.md", "table.csv", "table.png"].index)
    page = (tmp_path / "table.md").read_text()
    for line in ("# mine", "## masked: mlm", "| base | 2 | 1.5000 | 0.7071 | - | - | - |", "| x | 1 (missing: 1) | 1.5000 | - | +0.5000 | - | - |",
                 "| gone | 0 (missing: 0, 1) | missing | - | - | - | - |", "![readouts](table.png)", "percentile bootstrap (10,000 draws"):
        assert line in page, page
    found = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [line["variant"] for line in found] == ["base", "x", "gone"] * 2
    assert found[1]["difference"] == "0.5" and found[1]["missing_seeds"] == "1" and found[1]["values"] == "0:1.5" and found[2]["mean"] == "" and found[2]["missing_seeds"] == "0 1"
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"
    assert [str(c) for c in comparison.shown(one).columns[0].cells] == list(VALUES)
