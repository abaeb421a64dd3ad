"""One network, four masks (UniLM, Dong et al. 2019, arXiv 1905.03197, section 2.3): of each row it is drawn which tokens see which.

B rows, L length.
"""
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ptmjax.data.corruption import Over
from ptmjax.data.pairs import Pairs
from ptmjax.types import BIDIRECTIONAL, LEFT_TO_RIGHT, PATTERNS, RIGHT_TO_LEFT, SEQ2SEQ, UserError

TYPES = {BIDIRECTIONAL: (0, 1), LEFT_TO_RIGHT: (2, 2), RIGHT_TO_LEFT: (3, 3), SEQ2SEQ: (4, 5)}  # of the first segment, of the second


@dataclasses.dataclass(frozen=True)
class Patterns(Over):
    """Corruption: masked rows of one of four patterns, drawn by `rates` (bidirectional, left to right, right to left, seq2seq): `pattern`,
    which nn.masks.patterns reads.

    Bidirectional rows are those of `pairs` with its label; seq2seq rows are two segments that follow each other; the other two are one
    segment, the record's tokens from its first on. The label counts in bidirectional rows alone. Tokens of both segments are predicted in
    every pattern. types tell segment and pattern, six in all (0 1, 2, 3, 4 5), as UniLM's code but for the 3, which is not used there.
    The paper says of the target's end that it is masked in fine-tuning; no symbol is predicted here.
    """

    over = "pairs"
    pairs: Pairs
    rates: tuple[float, float, float, float] = (1 / 3, 1 / 6, 1 / 6, 1 / 3)

    def __post_init__(self):
        object.__setattr__(self, "rates", tuple(self.rates))
        if len(self.rates) != len(PATTERNS) or min(self.rates) < 0 or abs(sum(self.rates) - 1) > 1e-6:
            raise UserError(f"rates {self.rates} of the patterns {', '.join(PATTERNS)} must be four shares that sum to 1")

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.pairs.features, "pattern")

    def rows(self, examples: Sequence[dict], rngs: Iterable[np.random.Generator], lookup: Sequence[dict]) -> dict[str, np.ndarray]:
        """The same for many rows at once, [B, L] and [B]: each row depends on its own example and generator, and on `lookup`."""
        rngs, masking = list(rngs), self.pairs.masking
        pattern = np.searchsorted(np.cumsum(self.rates)[:-1], [rng.random() for rng in rngs], "right")
        following = dataclasses.replace(self.pairs, other=0.0, swapped=0.0)
        made = []
        for example, rng, p in zip(examples, rngs, pattern):
            if p in (BIDIRECTIONAL, SEQ2SEQ):
                made.append((self.pairs if p == BIDIRECTIONAL else following).pair(example, rng, lookup))
            else:
                made.append((masking.pieces(example)[: masking.length - 2], (), 0))
        out = masking.masked([(a, b) if len(b) else (a,) for a, b, _ in made], rngs, lookup)
        second = np.arange(masking.length) >= np.array([len(a) + 2 for a, _, _ in made])[:, None]
        types = np.where(second, *np.array([TYPES[p] for p in pattern])[:, ::-1].T[..., None]) * out["segments"]
        scored = np.array([p == BIDIRECTIONAL and len(a) > 0 < len(b) for (a, b, _), p in zip(made, pattern)], np.float32)
        label = np.array([label for _, _, label in made], np.int32)
        return out | {"types": types.astype(np.int32), "label": label, "row_weights": scored, "pattern": pattern.astype(np.int32)}
