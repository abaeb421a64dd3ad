"""ALBERT (Lan et al. 2020) in transformers' layout.

G groups, each of layers that share one block.
"""
from collections.abc import Collection, Mapping
from functools import partial

from ptmjax.convert import bert
from ptmjax.convert.fields import OURS, count, only, parsed
from ptmjax.convert.names import Name, linear, norm
from ptmjax.convert.network import need
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.linear import Linear
from ptmjax.training.build import Build
from ptmjax.types import UserError

MODEL = "albert"
TEXT, network = bert.TEXT, bert.network
FIELDS = bert.FIELDS | {"embedding_size": count, "num_hidden_groups": count, "inner_group_num": only(1)}
DEFAULTS = bert.DEFAULTS | {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                            "embedding_size": 128, "num_hidden_groups": 1, "inner_group_num": 1}
KINDS = {("mlm", "sop"): "AlbertForPreTraining", ("mlm",): "AlbertForMaskedLM", (): "AlbertModel"}
STACK = "model/stack/groups/"


def block(ours: str, theirs: str) -> list[Name]:
    """What the layers of a group share."""
    return [
        *(name for part in ("query", "key", "value") for name in linear(f"{ours}/attention/{part}", f"{theirs}.attention.{part}")),
        *linear(f"{ours}/attention/out", f"{theirs}.attention.dense"), *norm(f"{ours}/norms/attention", f"{theirs}.attention.LayerNorm"),
        *linear(f"{ours}/mlp/wi", f"{theirs}.ffn"), *linear(f"{ours}/mlp/wo", f"{theirs}.ffn_output"),
        *norm(f"{ours}/norms/mlp", f"{theirs}.full_layer_layer_norm"),
    ]


def names(build: Build, net: str) -> list[Name]:
    groups = sorted({path.removeprefix(STACK).split("/")[0] for path in build.keys if path.startswith(STACK)})
    return [
        *bert.embeddings("model/embedder", "albert.embeddings"),
        *linear("model/project", "albert.encoder.embedding_hidden_mapping_in"),
        *(name for g in groups for name in block(f"{STACK}{g}", f"albert.encoder.albert_layer_groups.{g}.albert_layers.0")),
        *linear("model/heads/mlm/transform", "predictions.dense"), *norm("model/heads/mlm/norm", "predictions.LayerNorm"),
        Name("model/heads/mlm/bias", "predictions.bias"), *linear("model/heads/sop/dense", "albert.pooler"),
        *linear("model/heads/sop/out", "sop_classifier.classifier"),
    ]


def fields(config: Mapping, where: str) -> dict:
    found = parsed(config, FIELDS, DEFAULTS, where)
    layers, groups = found["num_hidden_layers"], found["num_hidden_groups"]
    if layers % groups:
        raise UserError(f"{where} has {layers} num_hidden_layers in {groups} num_hidden_groups; they must be of equal size")
    return found


def plain(name: str) -> str:
    """Bare encoders have no "albert."."""
    return name if name.startswith(("albert.", "predictions.", "sop_classifier.")) else f"albert.{name}"


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    return {"predictions.decoder.weight": "albert.embeddings.word_embeddings.weight", "predictions.decoder.bias": "predictions.bias"}


def build(config: Mapping, tensors: Collection[str]) -> Build:
    """The networks of a folder, with the heads that it has."""
    width, embed, init, named = config["hidden_size"], config["embedding_size"], config["initializer_range"], set(map(plain, tensors))
    heads = {}
    if "predictions.bias" in named:
        heads["mlm"] = partial(VocabularyHead, config["vocab_size"], width, embed=embed, act=OURS[config["hidden_act"]],
                               eps=config["layer_norm_eps"], init=init)
    if "sop_classifier.classifier.weight" in named:
        heads["sop"] = partial(Classifier, 2, width, init=init)
    project = partial(Linear, embed, width, (None, "embed"), init=init)
    net = bert.encoder(config, width, embed, heads, project, groups=config["num_hidden_groups"], shared=("*",))
    return Build({"model": net}, bert.TIES if "mlm" in heads else {})


def mine(nets: Mapping[str, Network]) -> bool:
    return set(nets) == {"model"} and nets["model"].decoder is None and bert.shares(nets["model"])


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it; what it has no word for is held to what `build` makes of it."""
    heads = tuple(sorted(net.heads))
    need(heads in KINDS, f"its heads are {', '.join(heads)}; known are mlm and sop, and mlm alone")
    sizes = bert.sizes(net, build, name)
    return {"architectures": [KINDS[heads]], "model_type": MODEL, "tie_word_embeddings": True,
            "embedding_size": net.embedder.parts["tokens"].table.shape[1], "num_hidden_groups": len(net.stack.groups),
            "inner_group_num": 1} | sizes


def ids(symbols: Mapping[str, int]) -> dict:
    """config.json's ids of a vocabulary's symbols; a text begins with [CLS] and ends with [SEP]."""
    return {"pad_token_id": symbols.get("pad"), "bos_token_id": symbols.get("cls"), "eos_token_id": symbols.get("sep")}
