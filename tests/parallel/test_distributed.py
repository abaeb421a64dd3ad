"""What processes do together, where one is lost."""
import jax
import pytest
from jax.experimental import multihost_utils

from ptmjax.parallel import distributed


def test_alone():
    assert distributed.gathered(7) == [7] and distributed.of_the_first(3) == 3
    assert distributed.everywhere(True) is True and distributed.everywhere(False) is False


@pytest.mark.parametrize("ask", [distributed.everywhere, distributed.of_the_first, distributed.gathered])
@pytest.mark.parametrize("kind", [ValueError, jax.errors.JaxRuntimeError])
def test_a_lost_process_is_one_kind_of_fault(monkeypatch, ask, kind):
    """jax has another one where the gather is dispatched at once, and the command tells of one alone."""
    def gone(x):
        raise kind("UNKNOWN: Gloo AllGather failed: Connection closed by peer [127.0.0.1]:1")

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gone)
    with pytest.raises(jax.errors.JaxRuntimeError, match="closed by peer"):
        ask(1)
