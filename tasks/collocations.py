"""How the shipped list of English collocations was made from the shipped text, by PMI-Masking's measure (Levine et al. 2021, arXiv
2010.01825, section 3.2). The same recipe makes that of a text of one's own:

python -m ptmjax.tasks.collocations TEXT.txt COLLOCATIONS.txt      a text, and the name of the list to write
"""
import collections
import heapq
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_RUN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*(?: [^\W_]+(?:['’][^\W_]+)*)*")  # words with single spaces between
HOLDOUT = 50  # one document in so many is held out, as of the tasks
MOST, LEAST = 5, 10  # words of the longest, and how often each must occur, as in the paper
SIZE = 8000  # the paper keeps 800,000 of 16 GB, of which about half of all words are part; here a third are
Gram = tuple[str, ...]


def collocations(texts: Iterable[str], size: int = SIZE, least: int = LEAST) -> list[str]:
    """The `size` n-grams of 2 to MOST words (lower case, within one run of words and spaces) that hold together most, in the order of the
    alphabet: those whose weakest parting is likeliest to be no chance (pmi)."""
    runs = [run.split() for text in texts for run in _RUN.findall(re.sub(r"\s+", " ", text.lower()))]
    counts: dict[int, collections.Counter[Gram]] = {}
    for n in range(1, MOST + 1):  # what occurs less than `least` times is part of nothing that occurs more
        shorter = counts.get(n - 1)
        often = lambda gram, shorter=shorter: shorter is None or min(shorter[gram[1:]], shorter[gram[:-1]]) >= least
        counts[n] = collections.Counter(gram for run in runs for gram in grams(run, n) if often(gram))
    total = {n: max(1, sum(max(0, len(run) - n + 1) for run in runs)) for n in counts}
    logs = {gram: math.log(c / total[n]) for n, found in counts.items() for gram, c in found.items() if c >= least}
    found = heapq.nsmallest(size, ((-pmi(gram, logs), gram) for gram in logs if len(gram) > 1))
    return sorted(" ".join(gram) for _, gram in found)


def grams(words: Sequence[str], n: int) -> Iterable[Gram]:
    return zip(*(words[i:] for i in range(n)))


def pmi(gram: Gram, logs: dict[Gram, float]) -> float:
    """log of p(w1 ... wn) / the product of p of the parts, of the parting into two or more for which it is least."""
    n, best = len(gram), {}
    for size in range(1, n + 1):
        for i in range(n - size + 1):
            j = i + size
            parted = max((best[i, k] + best[k, j] for k in range(i + 1, j)), default=-math.inf)
            best[i, j] = parted if size == n else max(parted, logs[gram[i:j]])
    return logs[gram] - best[0, n]


def main(text: str, out: str) -> None:
    from ptmjax.data import text as texts

    found = collocations(document for document in texts.documents(text) if texts.split_of(document, HOLDOUT) == "train")
    Path(out).write_text("".join(f"{words}\n" for words in found), encoding="utf-8")
    print(f"{len(found):,} collocations")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
