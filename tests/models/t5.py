"""A small T5 of awkward sizes and a batch for it.

B rows, L length of the encoder's side, T of the decoder's.
"""
import functools

import jax.numpy as jnp
import numpy as np

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Final, T5Block
from ptmjax.nn.relative import Relative
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build

part = functools.partial
VOCAB, WIDTH, HEADS, SIZE, HIDDEN = 131, 24, 3, 10, 40
SHARED = {"model/decoder/embedder": "model/embedder"}
TIED = {"model/heads/lm/table": "model/embedder/parts/tokens/table"}


def side(see, cross, vocab, width, heads, size, hidden, layers, act, buckets, reach, rate, kernel="auto"):
    """Embedder, context and stack of the encoder or the decoder."""
    block = part(T5Block, width, heads, size, hidden, act=act, rate=rate, cross=cross, kernel=kernel)
    return (part(Embedder, {"tokens": part(Table, "tokens", vocab, width, init="normal")}, width, norm=None, rate=rate),
            part(Context, see, bias=part(Relative, heads, buckets=buckets, reach=reach, both=not cross)),
            part(Stack, [(block, layers), (part(Final, width, norm="rms", eps=1e-6, rate=rate), 1)]))


def t5(layers=(3, 2), *, v1_1=False, vocab=VOCAB, width=WIDTH, heads=HEADS, size=SIZE, hidden=HIDDEN, buckets=8, reach=12, rate=0.0,
       kernel="auto") -> Build:
    """Version 1.0: relu, a tied head whose scores are scaled; 1.1: gated gelu, a head of its own."""
    sizes = (vocab, width, heads, size, hidden)
    act = "gated_gelu_tanh" if v1_1 else "relu"
    head = part(VocabularyHead, vocab, width, act=None, bias=False, scaled=not v1_1, init="fan_in_cut")
    net = part(Network, *side(masks.full, False, *sizes, layers[0], act, buckets, reach, rate, kernel), {"lm": head},
               decoder=part(Network, *side(masks.causal, True, *sizes, layers[1], act, buckets, reach, rate, kernel)))
    return Build({"model": net}, SHARED if v1_1 else SHARED | TIED)


def batch(rows: int = 4, length: int = 19, targets: int = 13, seed: int = 0) -> dict:
    """Rows of unequal lengths on both sides; the decoder reads the targets shifted right behind the pad id; all of them scored."""
    rng = np.random.default_rng(seed)
    real = np.arange(length) < rng.integers(length // 2, length + 1, (rows, 1))
    said = np.arange(targets) < rng.integers(targets // 2, targets + 1, (rows, 1))
    target = rng.integers(2, VOCAB, (rows, targets)) * said
    out = {"tokens": rng.integers(2, VOCAB, (rows, length)) * real, "segments": real * 1, "targets": target, "weights": said.astype(np.float32),
           "decoder_tokens": np.pad(target, ((0, 0), (1, 0)))[:, :-1], "decoder_segments": said * 1, "index": np.arange(rows),
           "start": np.zeros(rows, bool)}
    return {name: jnp.asarray(x.astype(np.int32) if x.dtype == np.int64 else x) for name, x in out.items()}
