"""BERT (Devlin et al. 2019) in transformers' layout.

N layers.
"""
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from ptmjax.convert.fields import OURS, act, act_name, count, flag, number, only, parsed
from ptmjax.convert.names import Name, linear, norm
from ptmjax.convert.network import need
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build

MODEL = "bert"
TIES = {"model/heads/mlm/table": "model/embedder/parts/tokens/table"}
FIELDS = {
    "vocab_size": count, "hidden_size": count, "num_hidden_layers": count, "num_attention_heads": count, "intermediate_size": count,
    "hidden_act": act, "hidden_dropout_prob": number, "attention_probs_dropout_prob": number, "max_position_embeddings": count,
    "type_vocab_size": count, "layer_norm_eps": number, "initializer_range": number, "tie_word_embeddings": flag,
    "position_embedding_type": only("absolute"), "is_decoder": only(False), "add_cross_attention": only(False),
}
DEFAULTS = {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "type_vocab_size": 2,
            "layer_norm_eps": 1e-12, "initializer_range": 0.02, "tie_word_embeddings": True, "position_embedding_type": "absolute",
            "is_decoder": False, "add_cross_attention": False}
TEXT = ("cls",), ("sep",), ("input_ids", "token_type_ids", "attention_mask")
KINDS = {("mlm", "nsp"): "BertForPreTraining", ("mlm",): "BertForMaskedLM", ("nsp",): "BertForNextSentencePrediction", (): "BertModel"}


def embeddings(ours: str, theirs: str) -> list[Name]:
    """Tokens, positions and types, summed and normed."""
    parts = {"tokens": "word_embeddings", "positions": "position_embeddings", "types": "token_type_embeddings"}
    tables = [Name(f"{ours}/parts/{part}/table", f"{theirs}.{name}.weight") for part, name in parts.items()]
    return tables + norm(f"{ours}/norm", f"{theirs}.LayerNorm")


def layers(ours: str, theirs: str) -> list[Name]:
    """The stacked post-LN blocks."""
    a, b = f"{ours}/groups/0", f"{theirs}.layer.{{}}"
    return [
        *(name for part in ("query", "key", "value") for name in linear(f"{a}/attention/{part}", f"{b}.attention.self.{part}")),
        *linear(f"{a}/attention/out", f"{b}.attention.output.dense"), *norm(f"{a}/norms/attention", f"{b}.attention.output.LayerNorm"),
        *linear(f"{a}/mlp/wi", f"{b}.intermediate.dense"), *linear(f"{a}/mlp/wo", f"{b}.output.dense"),
        *norm(f"{a}/norms/mlp", f"{b}.output.LayerNorm"),
    ]


def names(build: Build, net: str, base: str = MODEL) -> list[Name]:
    """base: what the encoder's tensors begin with."""
    return [
        *embeddings("model/embedder", f"{base}.embeddings"), *layers("model/stack", f"{base}.encoder"),
        *linear("model/heads/mlm/transform", "cls.predictions.transform.dense"),
        *norm("model/heads/mlm/norm", "cls.predictions.transform.LayerNorm"), Name("model/heads/mlm/bias", "cls.predictions.bias"),
        *linear("model/heads/nsp/dense", f"{base}.pooler.dense"), *linear("model/heads/nsp/out", "cls.seq_relationship"),
    ]


def fields(config: Mapping, where: str) -> dict:
    return parsed(config, FIELDS, DEFAULTS, where)


def network(tensors: Collection[str]) -> str:
    """Which network a folder holds."""
    return "model"


def plain(name: str, base: str = MODEL) -> str:
    """Older files have gamma and beta, bare encoders no "bert."."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith((f"{base}.", "cls.")) else f"{base}.{name}"


def copies(config: Mapping, base: str = MODEL) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    return {"cls.predictions.decoder.weight": f"{base}.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias"}


def encoder(config: Mapping, width: int, embed: int, heads: Mapping = {}, project=None, groups: int = 1, shared: Sequence[str] = (),
            offset: int = 0):
    """A factory of the encoder that config.json describes, its layers in groups of equal size; offset: the first place's row of the
    table of positions."""
    eps, rate, init = config["layer_norm_eps"], config["hidden_dropout_prob"], config["initializer_range"]
    table = partial(Table, width=embed, init=init)
    parts = {"tokens": partial(table, "tokens", config["vocab_size"]),
             "types": partial(table, "types", config["type_vocab_size"], vocabulary=False),
             "positions": partial(Positions, config["max_position_embeddings"] - offset, embed, offset=offset, init=init)}
    block = partial(Block, width, config["num_attention_heads"], config["intermediate_size"], act=OURS[config["hidden_act"]], eps=eps,
                    rate=rate, attention_rate=config["attention_probs_dropout_prob"], init=init)
    return partial(Network, partial(Embedder, parts, embed, eps=eps, rate=rate), Context,
                   partial(Stack, [(block, config["num_hidden_layers"] // groups)] * groups, shared=shared), heads, project=project)


def build(config: Mapping, tensors: Collection[str]) -> Build:
    """The networks of a folder, with the heads that it has."""
    width, named = config["hidden_size"], {plain(name) for name in tensors}
    part = dict(eps=config["layer_norm_eps"], init=config["initializer_range"])
    heads = {}
    if "cls.predictions.bias" in named:
        heads["mlm"] = partial(VocabularyHead, config["vocab_size"], width, act=OURS[config["hidden_act"]], **part)
    if "cls.seq_relationship.weight" in named:
        heads["nsp"] = partial(Classifier, 2, width, init=part["init"])
    return Build({"model": encoder(config, width, width, heads)}, TIES if "mlm" in heads else {})


def rows(build: Build, path: str) -> int:
    """Of a table, without padding."""
    need(path in build.keys, f"{path} is missing")
    leaf = build.leaves[build.owner(path)]
    return leaf.sizes[leaf.lead]


def sizes(net: Network, build: Build, name: str) -> dict:
    """What config.json says of an encoder."""
    need(isinstance(net.embedder, Embedder) and set(net.embedder.parts) == {"tokens", "positions", "types"},
         "its embeddings must be tokens, learned positions and types, as those of bert_base, roberta_base and electra_base are")
    need(isinstance(net.stack, Stack) and all(isinstance(group, Block) for group in net.stack.groups), "its stack must be of blocks alone")
    block, table = net.stack.groups[0], lambda part: rows(build, f"{name}/embedder/parts/{part}/table")
    return {
        "vocab_size": table("tokens"), "hidden_size": block.mlp.wo.kernel.shape[-1], "num_hidden_layers": sum(net.stack.counts),
        "num_attention_heads": block.attention.heads, "intermediate_size": block.mlp.wi.kernel.shape[-1],
        "hidden_act": act_name(block.mlp.act), "hidden_dropout_prob": block.rate, "attention_probs_dropout_prob": block.attention_rate,
        "max_position_embeddings": table("positions"), "type_vocab_size": table("types"), "layer_norm_eps": block.norms["mlp"].eps,
    }


def mine(nets: Mapping[str, Network]) -> bool:
    return set(nets) == {"model"} and nets["model"].decoder is None and not shares(nets["model"])


def shares(net: Network) -> bool:
    """Whether layers share parameters, as ALBERT's do."""
    return isinstance(net.stack, Stack) and bool(net.stack.shared)


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it; what it has no word for is held to what `build` makes of it."""
    heads = tuple(sorted(net.heads))
    need(heads in KINDS, f"its heads are {', '.join(heads)}; known are mlm and nsp")
    return {"architectures": [KINDS[heads]], "model_type": MODEL, "tie_word_embeddings": True} | sizes(net, build, name)


def ids(symbols: Mapping[str, int]) -> dict:
    """config.json's ids of a vocabulary's symbols."""
    return {"pad_token_id": symbols.get("pad")}
