"""Networks that a published layout has no place for: each is refused by name, and nothing is written."""
from functools import partial as part

import numpy as np
import pytest

from ptmjax.convert import published
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Block, Final
from ptmjax.nn.linear import Linear
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build
from ptmjax.types import UserError
from tests.models import albert, bert, electra, t5

W, SAME = 24, {}


class Louder(VocabularyHead):
    """Another head under the same names."""


def change(net, embedder=SAME, block=SAME, final=SAME, context=None, stack=None, heads=SAME, **more):
    """A factory of a Network, its parts with other arguments."""
    old_embedder, old_context, old_stack, *old_heads = net.args
    groups = old_stack.args[0]
    (one, n), *last = groups
    new = [(part(one, **block), n), *((part(f, **final), k) for f, k in last)]
    return part(Network, part(old_embedder, **embedder), context or old_context, part(Stack, stack or new, **old_stack.keywords),
                {**(old_heads[0] if old_heads else {}), **heads}, **net.keywords | more)


def refused(tmp_path, build, why):
    params = {name: np.zeros(leaf.shape, np.float32) for name, leaf in build.leaves.items()}
    with pytest.raises(UserError) as e:
        published.export(build, params, tmp_path / "out")
    assert str(e.value) == f"the published layout has no place for this network: {why}"
    assert list(tmp_path.iterdir()) == []


mlm = lambda head=VocabularyHead, **new: {"heads": {"mlm": part(head, bert.VOCAB, W, **new)}}
nsp = lambda classes=2, **new: {"heads": {"nsp": part(Classifier, classes, W, **new)}}


@pytest.mark.parametrize("changed, why", [
    (mlm(act="tanh"), "model/heads/mlm/act is tanh, there it is gelu"),
    (mlm(act=None), "model/heads/mlm/act is nothing, there it is gelu"),
    (mlm(eps=1e-3), "model/heads/mlm/norm/eps is 0.001, there it is 1e-12"),
    (mlm(norm="rms"), "model/heads/mlm/norm/bias is nothing, there it is [24]"),
    (mlm(scaled=True), f"model/heads/mlm/scale is {24**-0.5}, there it is nothing"),
    (mlm(bias=False), "model/heads/mlm is ptmjax.models.heads.VocabularyHead, there it is nothing"),
    (mlm(Louder), f"model/heads/mlm is {Louder.__module__}.Louder, there it is ptmjax.models.heads.VocabularyHead"),
    (nsp(act="gelu"), "model/heads/nsp/act is gelu, there it is tanh"),
    (nsp(first=False), "model/heads/nsp/first is False, there it is True"),
    (nsp(3), "model/heads/nsp/out/bias is [3], there it is [2]"),
    ({"heads": {"sop": part(Classifier, 2, W)}}, "its heads are mlm, nsp, sop; known are mlm and nsp"),
    ({"embedder": {"eps": 1e-3}}, "model/embedder/norm/eps is 0.001, there it is 1e-12"),
    ({"embedder": {"norm": "rms"}}, "model/embedder/norm/bias is nothing, there it is [24]"),
    ({"embedder": {"norm": None}}, "model/embedder/norm is nothing, there it is ptmjax.nn.norm.Norm"),
    ({"block": {"eps": 1e-3}}, "model/embedder/norm/eps is 1e-12, there it is 0.001"),
    ({"block": {"act": "relu"}}, "model/heads/mlm/act is gelu, there it is relu"),
    ({"block": {"act": "gated_gelu"}}, "model/stack/groups/0/mlp/gate is ptmjax.nn.linear.Linear, there it is nothing"),
    ({"block": {"place": "pre"}}, "model/stack/groups/0/pre is True, there it is False"),
    ({"block": {"bias": False}}, "model/stack/groups/0/attention/key/bias is nothing, there it is [3, 24]"),
    ({"stack": [(part(Block, W, 3, 40), 1)] * 2}, "model/stack/counts is (1, 1), there it is (2,)"),
    ({"stack": [(part(Block, W, 3, 40), 1), (part(Final, W), 1)]}, "its stack must be of blocks alone"),
    ({"context": part(Context, masks.causal)}, "model/context/see is ptmjax.nn.masks.causal, there it is ptmjax.nn.masks.full"),
    ({"context": part(Context, rotary=8)}, "model/context/rotary is 8, there it is nothing"),
    ({"project": part(Linear, W, W, (None, "embed"))}, "model/project is ptmjax.nn.linear.Linear, there it is nothing"),
])
def test_bert(tmp_path, changed, why):
    refused(tmp_path, Build({"model": change(bert.network(), **changed)}, bert.TIES), why)


def test_berts_table_that_is_not_tied(tmp_path):
    own, tokens = "model/heads/mlm/table", "model/embedder/parts/tokens/table"
    refused(tmp_path, Build({"model": bert.network()}), f"{own} is [131, 24], there it is [131, 24] of {tokens}")


def test_albert(tmp_path):
    whole, key = "ptmjax.nn.linear.Linear", "model/stack/groups/0/attention/key/bias"
    refused(tmp_path, albert.albert((3,), shared=("mlp*",)), f"{key} is [3, 24], there it is [24]")
    refused(tmp_path, albert.albert((3, 1)), "model/stack/counts is (3, 1), there it is (2, 2)")
    refused(tmp_path, Build({"model": change(albert.albert().factories["model"], project=None)}, bert.TIES), f"model/project is nothing, there it is {whole}")
    refused(tmp_path, Build({"model": change(albert.albert().factories["model"], heads={"nsp": part(Classifier, 2, W)})}, bert.TIES),
            "its heads are mlm, nsp, sop; known are mlm and sop, and mlm alone")


@pytest.mark.parametrize("net, changed, why", [
    ("generator", {"heads": {"mlm": part(VocabularyHead, bert.VOCAB, 12, embed=20, act="relu")}}, "heads/mlm/act is relu, there it is gelu"),
    ("generator", {"heads": {"mlm": part(VocabularyHead, bert.VOCAB, 12, embed=20, eps=1e-3)}}, "heads/mlm/norm/eps is 0.001, there it is 1e-12"),
    ("generator", {"heads": {"mlm": part(VocabularyHead, bert.VOCAB, 12, embed=20, bias=False)}}, None),
    ("discriminator", {"heads": {"rtd": part(Classifier, 1, 24, first=False)}}, "heads/rtd/act is tanh, there it is gelu"),
    ("discriminator", {"heads": {"rtd": part(Classifier, 1, 24, act="gelu")}}, "heads/rtd/first is True, there it is False"),
    ("discriminator", {"heads": {"rtd": part(Classifier, 2, 24, first=False, act="gelu")}},
     "heads/rtd/out/bias is [2], there it is [1]"),
    ("discriminator", {"embedder": {"eps": 1e-3}}, "embedder/norm/eps is 0.001, there it is 1e-12"),
])
def test_electra(tmp_path, net, changed, why):
    """Either network, the other as it should be."""
    build = electra.electra()
    build = Build(build.factories | {net: change(build.factories[net], **changed)}, electra.TIES)
    refused(tmp_path, build, f"{net}/{why}" if why else f"the {net}'s head is another")


def test_electras_tables_of_another_norm(tmp_path):
    build = electra.electra()
    build = Build({name: change(net, embedder={"norm": "rms"}) for name, net in build.factories.items()}, electra.TIES)
    refused(tmp_path, build, "discriminator/embedder/norm/bias is nothing, there it is [20]")


RELATIVE = "ptmjax.nn.relative.Relative"


def t5_with(encoder=SAME, decoder=SAME, act="relu", tied=True, **sizes):
    """T5 whose decoder is made anew with other arguments of tests.models.t5.side."""
    about = dict(vocab=t5.VOCAB, width=W, heads=3, size=10, hidden=40, layers=2, act=act, buckets=8, reach=12, rate=0.0)
    net = part(Network, *t5.side(masks.full, False, **about), {"lm": part(VocabularyHead, t5.VOCAB, W, act=None, bias=False, scaled=tied)},
               decoder=change(part(Network, *t5.side(masks.causal, True, **about | sizes)), **decoder))
    return Build({"model": change(net, **encoder)}, t5.SHARED | (t5.TIED if tied else {}))


@pytest.mark.parametrize("changed, why", [
    ({"act": "gated_gelu"}, "model/decoder/stack/groups/0/mlp/act is gelu, there it is gelu_tanh"),
    ({"decoder": {"block": {"act": "silu"}}}, "model/decoder/stack/groups/0/mlp/act is silu, there it is relu"),
    ({"decoder": {"block": {"eps": 1e-3}}}, "model/decoder/stack/groups/0/norms/attention/eps is 0.001, there it is 1e-06"),
    ({"encoder": {"final": {"eps": 1e-3}}}, "model/stack/groups/1/norm/eps is 0.001, there it is 1e-06"),
    ({"decoder": {"final": {"norm": "layer"}}}, "model/decoder/stack/groups/1/norm/bias is [1, 24], there it is nothing"),
    ({"hidden": 44}, "model/decoder/stack/groups/0/mlp/wi/kernel is [2, 24, 44], "
                     "there it is [2, 24, 40]"),
    ({"heads": 2, "size": 15}, "model/decoder/context/bias/table is [8, 2], "
                               "there it is [8, 3]"),
    ({"buckets": 6}, "model/decoder/context/bias/table is [6, 3], "
                     "there it is [8, 3]"),
    ({"reach": 20}, "model/decoder/context/bias/reach is 20, there it is 12"),
    ({"decoder": {"context": part(Context, masks.causal)}}, f"model/decoder/context/bias is nothing, there it is {RELATIVE}"),
    ({"encoder": {"embedder": {"norm": "rms"}}, "decoder": {"embedder": {"norm": "rms"}}}, "model/decoder/embedder/norm is ptmjax.nn.norm.Norm, there it is nothing"),
    ({"encoder": {"heads": {"lm": part(VocabularyHead, t5.VOCAB, W, act=None, scaled=True)}}},
     "model/heads/lm/bias is [131], there it is nothing"),
    ({"encoder": {"heads": {"lm": part(VocabularyHead, t5.VOCAB, W, act=None, bias=False)}}},
     f"model/heads/lm/scale is nothing, there it is {24**-0.5}"),
])
def test_t5(tmp_path, changed, why):
    refused(tmp_path, t5_with(**changed), why)


def test_what_has_no_meaning_for_what_is_computed_is_no_difference(tmp_path):
    """Dropout, the memory of the backward pass, and a small table that is padded as vocabularies are."""
    net = change(bert.network(remat="full"), embedder={"rate": 0.3}, block={"attention_rate": 0.2, "kernel": "xla"})
    parts = net.args[0].func.args[0] if not net.args[0].args else net.args[0].args[0]
    types = part(parts["types"].func, *parts["types"].args, vocabulary=True)
    build = Build({"model": part(Network, part(Embedder, {**parts, "types": types}, W), *net.args[1:])}, bert.TIES)
    params = bert.wild(build)
    published.export(build, params, tmp_path / "out")
    _, back, _ = published.load(tmp_path / "out")
    assert back["model/embedder/parts/types/table"].shape == (bert.TYPES, W)
