"""Similar words: what MacBERT shows in the place of a word (Cui et al. 2020, arXiv 2004.13922).

m predicted pieces of a batch.
"""
import dataclasses
import functools

import numpy as np
from etils import epath

from ptmjax.data.vocabulary import Vocabulary
from ptmjax.types import UserError


@dataclasses.dataclass(frozen=True)
class Similar:
    """Words and words like them, from a file: a line `word<TAB>other other ...` (UTF-8), read at first use, pickled as its path.

    At `rate` a word is shown as one of those that have as many pieces, each equally likely; where the file has none, as random pieces.
    MacBERT takes its similar words from word2vec vectors of Chinese words (the toolkit Synonyms); here any table does, of vectors,
    WordNet or a thesaurus.
    """

    path: str
    vocabulary: Vocabulary
    rate: float = 0.8

    def __post_init__(self):
        if not 0 < self.rate <= 1:
            raise UserError(f"similar words are shown at rate {self.rate}: give a share in (0, 1]")

    def __getstate__(self) -> dict:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # worker processes read the file again

    @functools.cached_property
    def _bytes(self) -> bytes:
        try:
            return epath.Path(self.path).read_bytes()
        except OSError as e:
            raise UserError(f"similar words {self.path} cannot be read ({e.strerror or e}): give lines of word<TAB>other other") from e

    @functools.cached_property
    def words(self) -> dict[str, list[str]]:
        """word -> similar ones, as the file has them."""
        found = {}
        try:
            lines = self._bytes.decode().splitlines()
        except UnicodeDecodeError as e:
            raise UserError(f"similar words {self.path} are not UTF-8 ({e.reason} at byte {e.start}): save the file as UTF-8") from e
        for number, line in enumerate(lines, 1):
            word, tab, others = line.partition("\t")
            if not (tab and word and others.split()):
                raise UserError(f"similar words {self.path}, line {number}: {line[:60]!r} is not word<TAB>other other")
            found[word] = others.split()
        return found

    @functools.cached_property
    def table(self) -> dict[tuple[int, ...], np.ndarray]:
        """ids of a word -> ids of those similar that have as many pieces, int32 [words, pieces]."""
        ids, found, special = lambda word: tuple(self.vocabulary.encode(word).tolist()), {}, self.vocabulary.special
        for word, others in self.words.items():
            mine = ids(word)
            alike = dict.fromkeys(other for other in map(ids, others) if len(other) == len(mine) and other != mine)
            if usable := [other for other in alike if not special.intersection(other)]:
                found.setdefault(mine, np.array(usable, np.int32))
        return found

    def swapped(self, targets: np.ndarray, pick: np.ndarray, new: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """targets [m] with similar words in the place of those picked (pick and new, where a word begins, bool [m]; draws in [0, 1) [m],
        of which a word takes its first), and bool [m]: picked, and the table has nothing."""
        out, unknown = targets.copy(), np.zeros(len(targets), bool)
        begin = np.append(np.flatnonzero(new), len(targets))
        for first, end in zip(begin[:-1].tolist(), begin[1:].tolist()):
            if pick[first]:
                others = self.table.get(tuple(targets[first:end].tolist()))
                if others is None:
                    unknown[first:end] = True
                else:
                    out[first:end] = others[int(draws[first] * len(others))]
        return out, unknown
