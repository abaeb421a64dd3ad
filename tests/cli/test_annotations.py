"""Which values fit which annotations: one table, both ways."""
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import pytest

from ptmjax.cli.annotations import annotations, finite, fits, shown

T = TypeVar("T")


class Shape(Protocol):
    def area(self) -> float: ...


FITS = [
    (int, [3, -1, 0], [True, 3.0, "3", None, [3]]),
    (float, [3, 0.5], [True, "0.5", None, [0.5]]),
    (bool, [True, False], [0, 1, "True", None]),
    (str, ["a", ""], [1, None, ["a"]]),
    (None, [None], [0, "", False]),
    (int | None, [3, None], ["3", 0.5]),
    (int | str, [3, "3"], [0.5, None]),
    (float | Sequence[float], [1, [1, 0.5]], ["1", ["1"]]),
    (Literal["sum", 2], ["sum", 2], ["mean", 2.0, None]),
    (Sequence[int], [[1, 2], (1,), []], ["12", [1, "2"], {1: 2}, 1]),
    (list, [[1], ("a", 2)], ["a", 3]),
    (tuple[int, str], [(1, "a"), [1, "a"]], [(1,), ("a", 1), (1, "a", 2)]),
    (tuple[int, ...], [(), (1, 2)], [(1, "a")]),
    (frozenset[str], [["a"]], [[1]]),
    (Mapping[str, float], [{}, {"a": 1}], [{"a": "b"}, [1]]),
    (dict, [{"a": [1]}], [[1], None]),
    (Callable[..., int], [], [3, "f", None]),
    (type, [], [3, "int"]),
    (Path, [], ["a", 3]),
    (Any, [3, "a", None, [1]], []),
    (T, [3, "a"], []),
    (Shape, [3], []),
    (object, [3, None], []),
]


@pytest.mark.parametrize("wanted, value", [(w, v) for w, good, _ in FITS for v in good])
def test_what_fits(wanted, value):
    assert fits(value, wanted)


@pytest.mark.parametrize("wanted, value", [(w, v) for w, _, bad in FITS for v in bad])
def test_what_does_not(wanted, value):
    assert not fits(value, wanted)


def test_an_annotation_is_shown_as_it_is_written():
    wanted = {int: "int", int | None: "int | None", Sequence[int]: "Sequence[int]", Literal["a"]: "Literal['a']"}
    assert [shown(w) for w in wanted] == list(wanted.values())


def test_annotations_of_other_packages_that_do_not_evaluate_are_left_alone():
    def ours(x: "NoSuchName"): ...  # noqa: F821

    assert annotations(ours) == {}
    ours.__module__ = "ptmjax.nn.stack"
    with pytest.raises(NameError):
        annotations(ours)


def test_finite_looks_into_containers():
    assert finite({"a": [1.0, (2, "x", None)]})
    assert not finite({"a": [1.0, (2, float("inf"))]}) and not finite(float("nan"))
