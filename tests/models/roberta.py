"""A small RoBERTa of awkward sizes and a batch for it: pad is 1, positions begin at 2."""
import functools

import jax.numpy as jnp
import numpy as np

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build
from tests.models import bert

part = functools.partial
VOCAB, LENGTH, PAD, EPS = bert.VOCAB, 37, 1, 1e-5


def roberta(vocab=VOCAB, width=24, heads=3, layers=2, hidden=40, *, length=LENGTH, offset=PAD + 1) -> Build:
    parts = {"tokens": part(Table, "tokens", vocab, width), "positions": part(Positions, length, width, offset=offset),
             "types": part(Table, "types", 1, width, vocabulary=False)}
    block = part(Block, width, heads, hidden, eps=EPS, rate=0.0, attention_rate=0.0)
    net = part(Network, part(Embedder, parts, width, eps=EPS, rate=0.0), Context, part(Stack, [(block, layers)]),
               {"mlm": part(VocabularyHead, vocab, width, eps=EPS)})
    return Build({"model": net}, bert.TIES)


def batch(rows: int = 8, length: int = 19) -> dict:
    """BERT's, with pad in the padding and one type."""
    b = bert.batch(rows, length)
    fill = lambda x: jnp.where(b["segments"] > 0, x, PAD)
    return b | {"tokens": fill(b["tokens"]), "targets": fill(b["targets"]), "types": jnp.zeros_like(b["types"])}


def longer(b: dict, more: int) -> dict:
    """The batch with `more` places of padding behind every row."""
    fill = {"tokens": PAD, "targets": PAD}
    pad = lambda name, x: x if x.ndim == 1 else np.pad(np.asarray(x), ((0, 0), (0, more)), constant_values=fill.get(name, 0))
    return {name: jnp.asarray(pad(name, x)) for name, x in b.items()}
