"""BERT (Devlin et al. 2019): masked words in slots and next sentence, two losses over one encoding.

A row is CLS list SEP list SEP; the second list says the first again, or is another record's. Only it is masked.
"""
from collections.abc import Callable
from functools import partial

import numpy as np

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Block, Final
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm, Sentence
from ptmjax.training.build import Build
from tests.systems.harness import CLS, FIRST, MASK, SEP, SIZE, N, System, lists, pad

L, SLOTS = 2 * N + 4, 3  # a place more than it takes, so that four devices can share them


def pairs(example, rng, lookup, *, other: float = 0.5, shown: float = 0.8):
    """`other` is the share of rows with a random second list, `shown` the share of scored words shown as MASK."""
    strange = rng.random() < other
    place = example["document"] + (int(rng.integers(1, len(lookup))) if strange else 0)
    again = lookup[place % len(lookup)]["words"][: int(rng.integers(N // 2, N + 1))]
    row = pad([CLS, *example["words"], SEP, *again, SEP], L)
    where = N + 2 + rng.permutation(len(again))[: max(1, round(0.35 * len(again)))]
    u, tokens, weights = rng.random(len(where)), row.copy(), np.zeros(L, np.float32)
    tokens[where] = np.where(u < shown, MASK, np.where(u < (1 + shown) / 2, rng.integers(FIRST, SIZE, len(where)), row[where]))
    weights[where] = 1
    segments = (np.arange(L) < N + 3 + len(again)).astype(np.int32)
    return {"tokens": tokens, "targets": row, "weights": weights, "segments": segments, "types": (np.arange(L) > N + 1) * segments,
            "label": np.int32(strange), "row_weights": np.float32(1)}


def coder(width: int, layers: int, heads: dict[str, Callable], see: Callable = masks.full, embed: int | None = None,
          project: Callable | None = None, sequence: bool = False, shared: tuple[str, ...] = ()) -> Callable:
    """A factory of an encoder of pairs; `embed` is the width of its tables where that is not `width`."""
    e, block = embed or width, partial(Block, width, 4, 2 * width, place="pre", init="fan_in")
    parts = {"tokens": partial(Table, "tokens", SIZE, e, init="fan_in"), "positions": partial(Positions, L, e, init=0.1),
             "types": partial(Table, "types", 2, e, vocabulary=False)}
    stack = partial(Stack, [(block, layers), (partial(Final, width), 1)], sequence=sequence, shared=shared)
    return partial(Network, partial(Embedder, parts, e), partial(Context, see), stack, heads, project=project)


def mlm(width: int, embed: int | None = None) -> Callable:
    return partial(VocabularyHead, SIZE, width, embed=embed, init="fan_in")


def tied(net: str) -> dict[str, str]:
    return {f"{net}/heads/mlm/table": f"{net}/embedder/parts/tokens/table"}


def system(see: Callable = masks.full, sequence: bool = False, **shown: float) -> System:
    heads = {"mlm": mlm(64), "nsp": partial(Classifier, 2, 64, init="fan_in")}
    build = Build({"model": coder(64, 2, heads, see, sequence=sequence)}, tied("model"))
    return System(build, Encoding([Mlm(SLOTS), Sentence()]), partial(pairs, **shown), lists)
