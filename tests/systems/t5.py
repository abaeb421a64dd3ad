"""T5 (Raffel et al. 2020): an encoder-decoder on span corruption, with relative positions from one table a side.

The encoder reads list SEP list, the second with two spans of two words replaced by sentinels; the decoder writes them.
"""
from functools import partial

import numpy as np

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Final, T5Block
from ptmjax.nn.relative import Relative
from ptmjax.nn.stack import Stack
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.training.build import Build
from tests.systems.harness import CLS, MASK, SEP, SIZE, N, System, lists, pad

D, L, TARGETS = 64, 2 * N, 8
ONE, TWO = SIZE, SIZE + 1  # sentinels
EOS = MASK


def spans(example, rng, lookup, *, recall: bool = False, apart: bool = False):
    """recall: score words only, not sentinels and EOS. apart: the first list as another packed example, out of sight."""
    words, i = example["words"], int(rng.integers(0, N - 4))
    j = int(rng.integers(i + 3, N - 1))
    row = [*words, SEP, *words[:i], ONE, *words[i + 2 : j], TWO, *words[j + 2 :]]
    target = [ONE, *words[i : i + 2], TWO, *words[j : j + 2], EOS]
    scored = np.isin(pad(target, TARGETS), (0, ONE, TWO, EOS), invert=True) if recall else np.arange(TARGETS) < len(target)
    segments = (np.arange(L) < len(row)).astype(np.int32) + (apart & (np.arange(L) < N))
    return {"tokens": pad(row, L), "segments": segments.astype(np.int32),
            "targets": pad(target, TARGETS), "weights": scored.astype(np.float32),
            "decoder_tokens": pad([CLS, *target[:-1]], TARGETS), "decoder_segments": (np.arange(TARGETS) < len(target)).astype(np.int32)}


def side(see, cross: bool, sequence: bool):
    """Embedder, context and stack of one side."""
    block = partial(T5Block, D, 8, 8, 2 * D, cross=cross)
    relative = partial(Relative, 8, buckets=64, both=not cross, init=2.0)  # one bucket a distance; heads begin with places of their own
    groups = [(block, 2), (partial(Final, D, norm="rms", eps=1e-6, rate=0.1), 1)]
    return (partial(Embedder, {"tokens": partial(Table, "tokens", SIZE + 2, D, init=1.0)}, D, norm=None),
            partial(Context, see, bias=relative), partial(Stack, groups, sequence=sequence))


def system(sequence: bool = False, **view: bool) -> System:
    head = partial(VocabularyHead, SIZE + 2, D, act=None, bias=False, init="fan_in")
    net = partial(Network, *side(masks.full, False, sequence), {"lm": head},
                  decoder=partial(Network, *side(masks.causal, True, sequence)))
    return System(Build({"model": net}, {"model/decoder/embedder": "model/embedder"}), Seq2Seq(), partial(spans, **view), lists)
