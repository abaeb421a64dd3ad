"""The systems of the step benchmark: their sizes, the same random batches for both sides, and the FLOPs of a step.

B rows, L length, L' the decoder's, K scored positions a row, D width, F hidden, V vocabulary.
"""
import dataclasses
from typing import NamedTuple

import numpy as np

RATE = 1e-4  # of AdamW, on both sides
FIRST = 5  # ids below stand for symbols that no text holds


class Tower(NamedTuple):
    """A stack of transformer layers."""

    layers: int
    width: int
    heads: int
    hidden: int


@dataclasses.dataclass(frozen=True)
class System:
    """gin, bindings: the shipped file and what it is given beyond it. decoder: L' of an encoder-decoder, else 0. generator, embed:
    ELECTRA's own, else None and 0."""

    kind: str  # bert, t5 or electra
    gin: str
    bindings: tuple[str, ...]
    tower: Tower
    vocabulary: int
    rows: int
    length: int
    slots: int
    decoder: int = 0
    generator: Tower | None = None
    embed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a step, both sides of an encoder-decoder."""
        return self.rows * (self.length + self.decoder)

    def batch(self, seed: int) -> dict[str, np.ndarray]:
        """Random ids, nothing padded, exactly K scored positions a row (all L' of a decoder); targets are random too."""
        rng, rows, scored = np.random.default_rng(seed), self.rows, self.decoder or self.length
        ids = lambda n: rng.integers(FIRST, self.vocabulary, (rows, n), dtype=np.int32)
        weights = np.zeros((rows, scored), np.float32)
        np.put_along_axis(weights, np.argsort(rng.random((rows, scored)), 1)[:, : self.slots], 1.0, 1)
        out = {"tokens": ids(self.length), "segments": np.ones((rows, self.length), np.int32), "targets": ids(scored), "weights": weights,
               "index": np.arange(rows, dtype=np.int32), "start": np.ones(rows, bool), "row_weights": np.ones(rows, np.float32)}
        if self.decoder:
            return out | {"decoder_tokens": ids(scored), "decoder_segments": np.ones((rows, scored), np.int32)}
        return out | {"types": np.zeros((rows, self.length), np.int32)}

    def flops(self) -> float:
        """Of the matrix products that a step needs, 2 for a multiplication and addition: three times those of the forward pass (the
        backward has two products for each), the vocabulary's head on the scored positions alone. So it is the same for all
        contestants, and a head over all positions is work that earns nothing."""
        return 3 * 2 * self.rows * self._products()

    def _products(self) -> int:
        """Multiplications of a row's forward pass. A layer: 4 D D of the projections and 2 D F a position, 2 D a pair of positions
        (scores, and what they weigh); cross attention: 2 D D a position of each side, 2 D a pair. Masked pairs count."""
        t, n, m = self.tower, self.length, self.decoder
        side = lambda t, n: t.layers * n * (4 * t.width**2 + 2 * t.width * t.hidden + 2 * t.width * n)
        if self.kind == "t5":
            cross = t.layers * (2 * t.width**2 * (n + m) + 2 * t.width * n * m)
            return side(t, n) + side(t, m) + cross + m * t.width * self.vocabulary
        if self.kind == "bert":
            return side(t, n) + self.slots * (t.width**2 + t.width * self.vocabulary)
        g, e = self.generator, self.embed
        head = self.slots * (g.width * e + e * self.vocabulary)
        return side(g, n) + n * e * g.width + head + side(t, n) + n * e * t.width + n * (t.width**2 + t.width)


BERT = Tower(4, 256, 4, 1024)
SYSTEMS = {
    "bert_4x256": System("bert", "bert_base_mlm.gin", ("D=256", "LAYERS=4", "HEADS=4", "HIDDEN=1024"), BERT, 30522, 16, 128, 20),
    "bert_base": System("bert", "bert_base_mlm.gin", (), Tower(12, 768, 12, 3072), 30522, 16, 128, 20),
    "t5_small": System("t5", "t5_small.gin", (), Tower(6, 512, 8, 2048), 32128, 4, 512, 114, 114),
    "electra_small": System("electra", "electra_small.gin", (), Tower(12, 256, 4, 1024), 30522, 16, 128, 20,
                            generator=Tower(12, 64, 1, 256), embed=128),
}


def tiny(system: System) -> System:
    """The same system, so small that only its running is tested."""
    small = Tower(1, 16, 2, 32)
    bindings = ("V=150", "D=16", "LAYERS=1", "HEADS=2", "HIDDEN=32")
    more = {"t5": ("SIZE=8",), "electra": ("E=8", "GD=8", "GHEADS=1", "GHIDDEN=16", "SLOTS=3"), "bert": ("SLOTS_SHORT=3",)}[system.kind]
    found = dataclasses.replace(system, bindings=bindings + more, tower=small, vocabulary=150, rows=2, length=16, slots=3)
    if system.kind == "t5":
        return dataclasses.replace(found, slots=5, decoder=5)
    return dataclasses.replace(found, generator=Tower(1, 8, 1, 16), embed=8) if system.kind == "electra" else found
