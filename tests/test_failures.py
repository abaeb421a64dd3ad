"""A few rows of the table of what goes wrong; `python -m tests.failures` gives all of it."""
import pytest

from tests.failures import FAILURES, table

WANTED = {  # what is done -> (exit code, what is said, steps lost at most)
    "SIGTERM in the evaluation at step 6": (143, "ptmjax: stopped by SIGTERM, step 6 is saved: the same command goes on", 0),
    "another text under the same name": (2, "holds a run on other data", 4),
}


@pytest.mark.parametrize("what", [pytest.param("SIGTERM in the evaluation at step 6", marks=pytest.mark.slow), "another text under the same name"])
def test_a_row(what, tmp_path):
    [row], (code, said, lost) = table([failure for failure in FAILURES if failure.what == what], tmp_path), WANTED[what]
    assert row.code == code and said in row.said and row.lost <= lost and row.same == "yes", row
    assert row.markdown().count("|") == 6 and "\n" not in row.markdown()


def test_every_row_has_a_name_of_its_own():
    assert len({failure.what for failure in FAILURES}) == len(FAILURES) >= 20
