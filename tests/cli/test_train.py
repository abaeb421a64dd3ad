"""What train makes of a machine that is too small, and of parts that do not fit together."""
import jax
import pytest

from ptmjax.cli.train import fitting, within_memory
from ptmjax.types import UserError


@pytest.mark.parametrize("fault", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")])
def test_no_memory_is_one_line(fault):
    with pytest.raises(UserError, match="no memory is left .*lower Stage.batch") as caught, within_memory():
        raise fault
    assert "\n" not in str(caught.value)


def test_a_part_that_is_missing_is_one_line():
    """None where a factory was to be, and the like."""
    with pytest.raises(UserError, match="do not fit together, at .*: AttributeError: 'NoneType' object") as caught, fitting():
        None.encode()
    assert "\n" not in str(caught.value)


def test_another_fault_of_a_device_stays_itself():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), within_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: a fault of the code")
