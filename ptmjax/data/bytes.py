"""Bytes as a vocabulary: no file, no unknown character (ByT5, Xue et al. 2022, arXiv 2105.13626).

n bytes.
"""
import dataclasses
from collections.abc import Iterable

import numpy as np

from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import at_least

FIRST = 3  # the id of byte 0, behind pad, eos and unk
SPACES = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f", np.uint8))


@dataclasses.dataclass(frozen=True)
class Bytes(Vocabulary):
    """pad 0, eos 1, unk 2, byte b is b + 3; then [CLS] [SEP] [MASK], or with `sentinels` those instead (ByT5 has 125)."""

    sentinels: int = 0

    def __post_init__(self):
        at_least(0, sentinels=self.sentinels)

    pad, unk, eos = 0, 2, 1

    @property
    def size(self) -> int:
        return FIRST + 256 + (self.sentinels or 3)

    @property
    def fingerprint(self) -> str:
        return f"{'bytes and sentinels' if self.sentinels else 'bytes'} {self.size}"

    @property
    def special(self) -> frozenset[int]:
        return frozenset((*range(FIRST), *range(FIRST + 256, self.size)))

    def _id(self, piece: str) -> int | None:
        names = ("[CLS]", "[SEP]", "[MASK]")
        return FIRST + 256 + names.index(piece) if piece in names and not self.sentinels else None

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + FIRST

    def decode(self, ids: Iterable[int]) -> str:
        """Ill-formed sequences become U+FFFD."""
        parts, held = [], bytearray()
        for id in map(int, ids):
            if FIRST <= id < FIRST + 256:
                held.append(id - FIRST)
                continue
            parts.append(held.decode(errors="replace"))
            parts.append(self.piece(id if 0 < id < self.size else self.unk))
            held = bytearray()
        return "".join([*parts, held.decode(errors="replace")])

    def piece(self, id: int) -> str:
        if FIRST <= id < FIRST + 256:
            return chr(id - FIRST) if 0x20 < id - FIRST < 0x7F else f"<0x{id - FIRST:02X}>"
        if id >= FIRST + 256 and self.sentinels:
            return f"<extra_id_{self.size - 1 - int(id)}>"
        return ("<pad>", "</s>", "<unk>", *["[CLS]", "[SEP]", "[MASK]"])[id if id < FIRST else id - 256]

    def starts(self, ids: np.ndarray) -> np.ndarray:
        """A byte behind white space, or behind a symbol, begins a word; white space belongs to the word before it."""
        byte = (ids >= FIRST) & (ids < FIRST + 256)
        ends = ~byte | SPACES[np.where(byte, ids - FIRST, 0)]
        behind = np.concatenate([np.ones_like(ends[..., :1]), ends[..., :-1]], -1)
        return behind | ~byte
