import pytest

from ptmjax.parallel.chips import CHIPS, Chip
from ptmjax.training import roofline
from ptmjax.training.hlo import Collective
from ptmjax.training.memory import Memory

SLOW = Chip(flops=1000, memory=100, bandwidth=10, network=2, axes=2, pod=4)
HELD = Memory(parameters=20, optimizer=5, carry=0, batch=10, temporaries=20, code=7)


def test_bounds_by_hand():
    """4 chips: 8000 FLOP in 2 s; 2 x 25 + 10 + 2 x 20 bytes in 10 s; 3 x 2 x 8 / 2 bytes in 12 s."""
    found = roofline.bounds(SLOW, 4, 8000, HELD, [Collective("all-reduce", 8, 2, 3)])
    assert found == pytest.approx((2, 10, 12)) and found.least == 12 and found.bottleneck == "network"
    assert roofline.bounds(SLOW, 4, 8000, HELD._replace(padding=99, temporaries=None), []).memory == 6
    blind = roofline.bounds(SLOW._replace(network=None), 4, 8000, HELD, [Collective("all-reduce", 8, 2, 3)])
    assert blind == pytest.approx((2, 10, None)) and blind.least == 10 and blind.bottleneck == "memory"
    assert roofline.bounds(SLOW, 4, 80_000, HELD, []).bottleneck == "compute" and roofline.bounds(SLOW, 4, 0, HELD, []).bottleneck == "memory"


def test_the_table_is_of_one_unit():
    """A wrong power of ten in it would stand out: a byte moved costs 150 to 600 FLOP, one sent 4 to 5 moved ones."""
    for chip in CHIPS.values():
        assert 150 < chip.flops / chip.bandwidth < 600 and (chip.network is None or 3.9 < chip.bandwidth / chip.network < 5)
    assert [name for name, chip in CHIPS.items() if chip.network is None] == ["tpu7x"]
