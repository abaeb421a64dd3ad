"""What corruptions share that make many rows at once."""
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np


class Corruption:
    """Of a frozen dataclass whose `rows(examples, rngs, lookup)` gives arrays [B, ...]: one row alone, and pickling."""

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator, lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        return {key: x[0] for key, x in self.rows([example], [rng], lookup).items()}

    def __getstate__(self) -> dict:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # not the tables: they are made again


class Over(Corruption):
    """One whose masked tokens are another's, the field `over`: that one's readout, with the rest as it is, and what is told of it."""

    over: ClassVar[str] = "masking"

    @property
    def _under(self) -> Corruption:
        return getattr(self, self.over)

    @property
    def vocabulary(self):
        return self._under.vocabulary

    def readout(self) -> "Over":
        """The same with all predicted places shown as MASK."""
        return dataclasses.replace(self, **{self.over: self._under.readout()})

    @property
    def view(self) -> str:
        """Of a readout, how the scored places are shown, for the head of a table."""
        return self._under.view

    def bound(self, counts: np.ndarray) -> dict[str, float]:
        """Of the masked tokens (masking.no_context_bound)."""
        return self._under.bound(counts)
