"""How the shipped Chinese tables were made from the shipped poems, with nothing from elsewhere: words and phrases by what stands together
more often than by chance, similar words by their neighbours. The same recipe makes those of a text of one's own:

python -m ptmjax.tasks.tables TEXT.txt WORDS.tsv SIMILAR.tsv      lines of Chinese; names the files to write
"""
import collections
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse

from ptmjax.data.segmenters import CJK, Gazetteer

_HAN = re.compile(f"[{CJK}]+")
LEAST = {2: 12, 3: 6, 4: 5}  # how often a run of so many characters must occur
PMI = 3.0  # nats by which it is likelier than its two parts together, however it is parted
SAME = 0.7  # the share above which one neighbour makes it a part of something longer
DIMENSIONS, WINDOW, NEIGHBOURS = 100, 3, 5


def collocations(lines: Iterable[str]) -> list[tuple[str, str]]:
    """(word, type) by length, then how often they occur, then code points; two characters are a "word", three or four a "phrase"."""
    runs = [run for line in lines for run in _HAN.findall(line)]
    counts = {n: collections.Counter(run[i : i + n] for run in runs for i in range(len(run) - n + 1)) for n in (1, *LEAST)}
    total, found = counts[1].total(), []
    for n, least in LEAST.items():
        often = {g: c for g, c in counts[n].items() if c >= least and _pmi(g, counts, total) >= PMI}
        whole = _apart(runs, often) if n > 2 else often
        found += [(g, "word" if n == 2 else "phrase") for g in sorted(whole, key=lambda g: (-often[g], g))]
    return found


def _pmi(gram: str, counts: dict[int, collections.Counter], total: int) -> float:
    """Of the weakest of the places where it can be parted."""
    n = len(gram)
    return min(math.log(counts[n][gram] * total / (counts[i][gram[:i]] * counts[n - i][gram[i:]])) for i in range(1, n))


def _apart(runs: Sequence[str], grams: dict[str, int]) -> set[str]:
    """Those that do not nearly always have the same character before or behind them."""
    sides, size = [collections.defaultdict(collections.Counter) for _ in range(2)], len(next(iter(grams), ""))
    for run in runs:
        for i in range(len(run) - size + 1):
            if (gram := run[i : i + size]) in grams:
                for side, c in zip(sides, (run[i - 1 : i] if i else "", run[i + size : i + size + 1])):
                    side[gram][c] += 1
    often = lambda gram: max((n for side in sides for c, n in side[gram].items() if c), default=0)
    return {gram for gram, n in grams.items() if often(gram) <= SAME * n}


def similar(lines: Iterable[str], words: str, characters: int = 1500, units: int = 2200) -> dict[str, list[str]]:
    """word -> the NEIGHBOURS of as many characters whose neighbours in the text are most alike: of the commonest `characters` characters
    and `units` words of a word list (its type "word"), each counted where it stands alone.

    Vectors: positive pointwise mutual information with all of these within WINDOW units of a line, by a singular value decomposition to
    DIMENSIONS, each dimension by the root of its value (Levy and Goldberg 2014); alike by cosine.
    """
    cut = Gazetteer(words, ("word",))
    said = [[unit for unit in cut(line) if _HAN.fullmatch(unit)] for line in lines]
    counts = collections.Counter(unit for line in said for unit in line)
    order = sorted(counts, key=lambda unit: (-counts[unit], unit))
    kept = [u for u in order if len(u) == 1][:characters] + [u for u in order if len(u) == 2][:units]
    vectors = _vectors(said, kept)
    found = {}
    for size in (1, 2):
        at = np.array([i for i, unit in enumerate(kept) if len(unit) == size])
        close = vectors[at] @ vectors[at].T
        np.fill_diagonal(close, -2)
        for i, row in zip(at, np.argsort(-np.round(close, 4), axis=1, kind="stable")[:, :NEIGHBOURS]):  # of equals the commoner
            found[kept[i]] = [kept[at[j]] for j in row]
    return found


def _vectors(lines: Sequence[Sequence[str]], kept: Sequence[str]) -> np.ndarray:
    """[kept, DIMENSIONS], of length 1."""
    number, pairs = {unit: i for i, unit in enumerate(kept)}, collections.Counter()
    for line in lines:
        ids = [number[unit] for unit in line if unit in number]
        for i, a in enumerate(ids):
            for b in ids[i + 1 : i + 1 + WINDOW]:
                pairs[a, b] += 1
    rows, columns = np.array(sorted(pairs)).T
    near = scipy.sparse.coo_array((np.array([pairs[p] for p in sorted(pairs)], float), (rows, columns)), (len(kept),) * 2).tocsr()
    near = (near + near.T).tocoo()
    of = near.sum(0)
    near.data = np.maximum(0, np.log(near.data * of.sum() / (of[near.row] * of[near.col])))
    found = _factors(near.tocsr(), min(DIMENSIONS, len(kept)))
    return found / np.maximum(1e-12, np.linalg.norm(found, axis=1, keepdims=True))


def _factors(matrix: scipy.sparse.csr_array, d: int) -> np.ndarray:
    """[n, d]: U S^.5 of the d largest singular values of a symmetric matrix [n, n], by power iteration from numbers that are always the
    same (Halko et al. 2011); scipy's svds draws anew where values are equal."""
    n = matrix.shape[0]
    q = np.random.default_rng(0).standard_normal((n, min(n, d + 20)))
    for _ in range(8):
        q, _ = np.linalg.qr(matrix @ q)
    u, s, _ = np.linalg.svd((matrix @ q).T, full_matrices=False)
    return (q @ u)[:, :d] * np.sqrt(s[:d])


def main(text: str, words: str, table: str) -> None:
    lines = Path(text).read_text(encoding="utf-8").split("\n")
    Path(words).write_text("".join(f"{word}\t{kind}\n" for word, kind in collocations(lines)), encoding="utf-8")
    found = similar(lines, words)
    Path(table).write_text("".join(f"{word}\t{' '.join(others)}\n" for word, others in found.items()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
