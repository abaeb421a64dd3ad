"""How long a step takes at least: each part of a chip at its peak, and the others at rest.

No promise: products of small matrices, waiting, and the host come on top, and little of a step overlaps perfectly.
"""
from collections.abc import Sequence
from typing import NamedTuple

from ptmjax.parallel.chips import Chip
from ptmjax.training.hlo import Collective
from ptmjax.training.memory import Memory


class Bounds(NamedTuple):
    """Seconds."""

    compute: float  # matrix products of the step, in equal parts on all chips
    memory: float  # the state read and written, the batch read, and every temporary (where known) written and read once; no padding
    network: float  # what a chip receives by collectives, over all its links at once

    @property
    def least(self) -> float:
        return max(self)

    @property
    def bottleneck(self) -> str:
        """The name of the longest."""
        return max(zip(self, self._fields))[1]


def bounds(chip: Chip, chips: int, flops: int, memory: Memory, collectives: Sequence[Collective]) -> Bounds:
    """flops: of the step, on all chips together."""
    moved = 2 * memory.state + memory.batch + 2 * (memory.temporaries or 0)
    return Bounds(flops / chips / chip.flops, moved / chip.bandwidth, sum(c.received for c in collectives) / chip.network)
