"""What train makes of parts that do not fit together."""
import pytest

from ptmjax.cli.session import fitting
from ptmjax.types import UserError


def test_a_part_that_is_missing_is_one_line():
    """None where a factory was to be, and the like."""
    with pytest.raises(UserError, match="do not fit together, at .*: AttributeError: 'NoneType' object") as caught, fitting():
        None.encode()
    assert "\n" not in str(caught.value)
