"""What corruptions share that make many rows at once."""
import dataclasses
from collections.abc import Sequence

import numpy as np


class Corruption:
    """Of a frozen dataclass whose `rows(examples, rngs, lookup)` gives arrays [B, ...]: one row alone, and pickling."""

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator, lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        return {key: x[0] for key, x in self.rows([example], [rng], lookup).items()}

    def __getstate__(self) -> dict:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # not the tables: they are made again
