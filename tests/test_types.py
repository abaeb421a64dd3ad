"""Numbers that a user gives."""
import math

import numpy as np
import pytest

from ptmjax.types import UserError, above_zero, at_least, at_most, highest


def test_limits_themselves_are_taken():
    at_least(3, a=3, b=3.5)
    at_most(3, a=3, b=-1)
    above_zero(a=1.5e-45, b=7, c=3.4e38)


@pytest.mark.parametrize("check, value, said", [
    (lambda **v: at_least(3, **v), 2, "be at least 3"), (lambda **v: at_least(3, **v), math.nan, "be at least 3"),
    (lambda **v: at_least(3, **v), math.inf, "be at least 3"), (lambda **v: at_most(3, **v), 4, "be at most 3"),
    (lambda **v: at_most(3, **v), math.nan, "be at most 3"), (above_zero, 0, "be above 0"), (above_zero, 1e-46, "be above 0, and a number in float32"), (above_zero, 10**39, "be above 0, and a number in float32"), (above_zero, math.nan, "be above 0"),
    (above_zero, math.inf, "be above 0")])
def test_what_is_beyond_or_no_number_is_refused(check, value, said):
    with pytest.raises(UserError, match=f"size is {value}; it must {said}"):
        check(width=3, size=value)


def test_the_highest_is_the_first_of_equals_as_argmax():
    x = np.random.default_rng(0).integers(-2, 3, (50, 9)).astype(np.float32)
    x[0], x[1] = -np.inf, 0
    assert (np.asarray(highest(x)) == x.argmax(-1)).all()
