"""What train makes of a machine that is too small."""
import jax
import pytest

from ptmjax.cli.train import within_memory
from ptmjax.types import UserError


@pytest.mark.parametrize("fault", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")])
def test_no_memory_is_one_line(fault):
    with pytest.raises(UserError, match="no memory is left .*lower Stage.batch") as caught, within_memory():
        raise fault
    assert "\n" not in str(caught.value)


def test_another_fault_of_a_device_stays_itself():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), within_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: a fault of the code")
