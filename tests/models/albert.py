"""A small ALBERT of awkward sizes: factorised tables, groups of layers that share one block."""
import functools

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.linear import Linear
from ptmjax.nn.stack import Stack
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm, Sentence
from ptmjax.training.build import Build
from tests.models.bert import LENGTH, TIES, TYPES, VOCAB

part = functools.partial
EMBED, WIDTH, HEADS, HIDDEN = 20, 24, 3, 40


def albert(counts=(4,), *, shared=("*",), rate=0.0, compute="float32", **options) -> Build:
    """`counts`: layers of each group; rate is every dropout rate; options are Stack's."""
    parts = {"tokens": part(Table, "tokens", VOCAB, EMBED), "positions": part(Positions, LENGTH, EMBED),
             "types": part(Table, "types", TYPES, EMBED, vocabulary=False)}
    block = part(Block, WIDTH, HEADS, HIDDEN, act="gelu_tanh", rate=rate, attention_rate=rate)
    stack = part(Stack, [(block, n) for n in counts], shared=shared, **options)
    heads = {"mlm": part(VocabularyHead, VOCAB, WIDTH, embed=EMBED, act="gelu_tanh"), "sop": part(Classifier, 2, WIDTH)}
    net = part(Network, part(Embedder, parts, EMBED, rate=rate), Context, stack, heads, project=part(Linear, EMBED, WIDTH, (None, "embed")))
    return Build({"model": net}, TIES, compute=compute)


def pretraining(slots: int = 6) -> Encoding:
    return Encoding([Mlm(slots), Sentence("sop")])
