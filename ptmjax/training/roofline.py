"""How long a step takes at least: each part of a device at its peak, and the others at rest.

No promise: products of small matrices, waiting, and the host come on top, and little of a step overlaps perfectly.
"""
from collections.abc import Sequence
from typing import NamedTuple

from ptmjax.parallel.chips import Chip
from ptmjax.training.hlo import Collective
from ptmjax.training.memory import Memory


class Bounds(NamedTuple):
    """Seconds."""

    compute: float  # matrix products of the step, in equal parts on all devices
    memory: float  # the state read and written, the batch read, and every temporary (where known) written and read once; no padding
    network: float | None  # what a device receives by collectives, over all its links at once; None where their speed is not known

    @property
    def least(self) -> float:
        return max(seconds for seconds in self if seconds is not None)

    @property
    def bottleneck(self) -> str:
        """The name of the longest."""
        return self._fields[self.index(self.least)]


def bounds(chip: Chip, devices: int, flops: int, memory: Memory, collectives: Sequence[Collective]) -> Bounds:
    """flops: of the step, on all devices together."""
    moved = 2 * memory.state + memory.batch + 2 * (memory.temporaries or 0)
    network = None if chip.network is None else sum(c.received for c in collectives) / chip.network
    return Bounds(flops / devices / chip.flops, moved / chip.bandwidth, network)
