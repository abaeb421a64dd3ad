"""A small ELECTRA of awkward sizes: both networks project the shared tables to widths of their own."""
import functools

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.linear import Linear
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build
from tests.models.bert import LENGTH, TYPES, VOCAB

part = functools.partial
TIES = {"discriminator/embedder": "generator/embedder", "generator/heads/mlm/table": "generator/embedder/parts/tokens/table"}
EMBED, GENERATOR, DISCRIMINATOR = 20, (12, 2, 2, 28), (24, 3, 3, 40)  # width, heads, layers, hidden


def encoder(heads, width, attention_heads, layers, hidden, *, vocab, embed, length, types, rate):
    parts = {"tokens": part(Table, "tokens", vocab, embed), "positions": part(Positions, length, embed),
             "types": part(Table, "types", types, embed, vocabulary=False)}
    block = part(Block, width, attention_heads, hidden, rate=rate, attention_rate=rate)
    return part(Network, part(Embedder, parts, embed, rate=rate), Context, part(Stack, [(block, layers)]), heads,
                project=None if width == embed else part(Linear, embed, width, (None, "embed")))


def electra(generator=GENERATOR, discriminator=DISCRIMINATOR, *, vocab=VOCAB, embed=EMBED, length=LENGTH, types=TYPES, rate=0.0) -> Build:
    tables = {"vocab": vocab, "embed": embed, "length": length, "types": types, "rate": rate}
    return Build({"generator": encoder({"mlm": part(VocabularyHead, vocab, generator[0], embed=embed)}, *generator, **tables),
                  "discriminator": encoder({"rtd": part(Classifier, 1, discriminator[0], first=False, act="gelu")}, *discriminator, **tables)},
                 TIES)
