"""docs/pitfalls.md: every row names tests that exist, every number stands there once."""
import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
NUMBERS = {"A": [1, 2, 3, 4, 6, 8, 9, 11, 12, 14, 16, 18, 20, 22, 23, 24, 25, 26], "B": [30, 31, 34], "C": [35, 36, 39, 40, 41, 43],
           "D": [44, 45, 47], "E": [49, 50, 51, 53], "F": [54, 55, 56], "G": [f"G{n}" for n in range(1, 12)]}
SECTION_OF = {str(number): letter for letter, numbers in NUMBERS.items() for number in numbers}
ISSUE = r"[\w.-]+/[\w.-]+#\d+"


@functools.cache
def functions(path: Path) -> set[str]:
    """The tests at the top of a file, which is not imported."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def faults(page: str) -> list[str]:
    """What is wrong with the page, a line each."""
    *sections, last = page.split("\n## ")[1:]
    rows = [(section[0], [cell.strip() for cell in line.strip("|\n").split(" | ")]) for section in sections
            for line in section.splitlines() if re.match(r"\| G?\d", line)]
    found = [f"row {cells[0]} has {len(cells)} cells" for _, cells in rows if len(cells) != 4]
    found += [f"row {cells[0]} stands in section {letter}" for letter, cells in rows if SECTION_OF.get(cells[0]) != letter]
    for number, *_, told, ids in (cells for _, cells in rows if len(cells) == 4):
        named = re.findall(r"`([^`]+)`", ids)
        found += [] if named and re.sub(r"`[^`]+`", "", ids).strip(", ") == "" else [f"row {number}: {ids!r} names no tests"]
        found += [f"row {number}: {fault}" for id in named if (fault := missing(id))]
        found += [] if told else [f"row {number} does not say what happens"]
    issues = {cells[0]: len(re.findall(ISSUE, cells[1])) for letter, cells in rows if letter != "G"}
    found += [f"row {number} names {n} issues" for number, n in issues.items() if not 1 <= n <= 3]
    seen = [cells[0] for _, cells in rows] + re.findall(r"^- (\d+):", last, re.M)
    return found + [f"{number} stands {seen.count(number)} times" for number in {*SECTION_OF, *seen} if seen.count(number) != 1 or number not in SECTION_OF]


def missing(id: str) -> str:
    """Why tests/file.py::test_name or tests/file.py::test_name[case] is no test; "" where it is one."""
    path, _, name = id.partition("::")
    name = re.sub(r"\[.*\]$", "", name)
    if not re.fullmatch(r"tests/[\w/]+\.py", path) or not (ROOT / path).is_file():
        return f"there is no file {path}"
    return "" if name.startswith("test_") and name in functions(ROOT / path) else f"{path} has no test {name}"


def test_the_page_holds():
    assert faults(PAGE) == []


@pytest.mark.parametrize("old, new, told", [
    ("::test_golden`", "::test_goldn`", "row 12: tests/data/test_spans.py has no test test_goldn"),
    ("tests/data/test_spans.py::test_golden", "tests/data/test_span.py::test_golden", "row 12: there is no file tests/data/test_span.py"),
    ("`tests/data/test_spans.py::test_lengths`, `tests/data/test_spans.py::test_lengths_are_the_most_that_fit`", "the tests", "row 11: 'the tests' names no tests"),
    ("`tests/data/test_choices.py::test_budget`", "`tests/data/test_choices.py::runs`", "row 4: tests/data/test_choices.py has no test runs"),
    ("- 43: ", "- 44: ", "43 stands 0 times"), ("- 43: ", "- 44: ", "44 stands 2 times"), ("- 43: ", "- 43: x\n- 99: ", "99 stands 1 times"),
    ("| 34 | ", "| 35 | ", "row 35 stands in section B"), ("| 41 | ", "| ", "41 stands 0 times"),
    (" (google-research/bert#910, huggingface/transformers#11768, huggingface/transformers#9866)", "", "row 1 names 0 issues"),
])
def test_a_page_that_does_not_is_seen(old, new, told):
    assert old in PAGE and told in faults(PAGE.replace(old, new, 1)), faults(PAGE.replace(old, new, 1))


def test_a_case_of_a_test_may_be_named():
    assert missing("tests/data/test_spans.py::test_lengths[512-568-114]") == "" != missing("tests/data/test_spans.py::lengths[512-568-114]")
