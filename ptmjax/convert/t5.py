"""T5 1.0 and 1.1 (Raffel et al. 2020) in transformers' layout."""
from collections.abc import Collection, Mapping
from functools import partial

from ptmjax.convert.bert import rows
from ptmjax.convert.fields import OURS, act, act_name, count, flag, number, only, parsed
from ptmjax.convert.names import Name
from ptmjax.convert.network import need
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Final, T5Block
from ptmjax.nn.mlp import GATED
from ptmjax.nn.relative import Relative
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build

MODEL = "t5"
GATE = "gated-"
TEXT = (), ("eos",), ("input_ids", "attention_mask")
SHARED = {"model/decoder/embedder": "model/embedder"}
TIED = {"model/heads/lm/table": "model/embedder/parts/tokens/table"}
ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}


def matrices(ours: str, theirs: str, parts: Mapping[str, str]) -> list[Name]:
    return [Name(f"{ours}/{here}/kernel", f"{theirs}.{there}.weight", True) for there, here in parts.items()]


def side(ours: str, theirs: str, cross: bool, gated: bool) -> list[Name]:
    """Relative positions, stacked blocks and final norm of the encoder or the decoder."""
    mlp = {"wi_0": "gate", "wi_1": "wi", "wo": "wo"} if gated else {"wi": "wi", "wo": "wo"}
    parts = [("attention", "SelfAttention", ATTENTION), *[("cross", "EncDecAttention", ATTENTION)] * cross, ("mlp", "DenseReluDense", mlp)]
    out = [Name(f"{ours}/context/bias/table", f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
           Name(f"{ours}/stack/groups/1/norm/scale", f"{theirs}.final_layer_norm.weight")]
    for place, (part, module, leaves) in enumerate(parts):
        at, here = f"{theirs}.block.{{}}.layer.{place}", f"{ours}/stack/groups/0"
        out += [Name(f"{here}/norms/{part}/scale", f"{at}.layer_norm.weight"), *matrices(f"{here}/{part}", f"{at}.{module}", leaves)]
    return out


def names(build: Build, net: str) -> list[Name]:
    gated = "model/stack/groups/0/mlp/gate/kernel" in build.leaves
    head = [Name("model/heads/lm/table", "lm_head.weight")] * ("model/heads/lm/table" in build.leaves)  # not where it is tied
    return [Name("model/embedder/parts/tokens/table", "shared.weight"), *head,
            *side("model", "encoder", False, gated), *side("model/decoder", "decoder", True, gated)]


def projection(x: object) -> str:
    """feed_forward_proj: an activation, "gated-" before it where there is a gate. "gated-gelu" is the tanh one's, as T5 1.1's."""
    gated = isinstance(x, str) and x.startswith(GATE)
    return GATE + act("gelu_new" if x == GATE + "gelu" else x.removeprefix(GATE)) if gated else act(x)


FIELDS = {
    "vocab_size": count, "d_model": count, "d_kv": count, "d_ff": count, "num_layers": count, "num_decoder_layers": count,
    "num_heads": count, "relative_attention_num_buckets": count, "relative_attention_max_distance": count, "dropout_rate": number,
    "layer_norm_epsilon": number, "feed_forward_proj": projection, "tie_word_embeddings": flag, "scale_decoder_outputs": flag,
    "is_decoder": only(False),
}
DEFAULTS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
            "feed_forward_proj": "relu", "tie_word_embeddings": True, "scale_decoder_outputs": True, "is_decoder": False}


def fields(config: Mapping, where: str) -> dict:
    """Version 1.1, a head of its own and scores that are not scaled, is told by tie_word_embeddings, of late by scale_decoder_outputs."""
    layers = config.get("num_decoder_layers")
    out = parsed({**config, "num_decoder_layers": config.get("num_layers") if layers is None else layers}, FIELDS, DEFAULTS, where)
    scaled = out.pop("scale_decoder_outputs")
    return out | {"tie_word_embeddings": out["tie_word_embeddings"] and scaled}


def network(tensors: Collection[str]) -> str:
    """Which network a folder holds."""
    return "model"


def plain(name: str) -> str:
    return name


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    theirs = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] + ["lm_head.weight"] * config["tie_word_embeddings"]
    return dict.fromkeys(theirs, "shared.weight")


def build(config: Mapping, tensors: Collection[str]) -> Build:
    """The networks of a folder."""
    width, vocab, eps, rate = config["d_model"], config["vocab_size"], config["layer_norm_epsilon"], config["dropout_rate"]
    act, tied = config["feed_forward_proj"], config["tie_word_embeddings"]
    act = GATED + OURS[act.removeprefix(GATE)] if act.startswith(GATE) else OURS[act]
    block = partial(T5Block, width, config["num_heads"], config["d_kv"], config["d_ff"], act=act, eps=eps, rate=rate)
    bias = partial(Relative, config["num_heads"], buckets=config["relative_attention_num_buckets"],
                   reach=config["relative_attention_max_distance"])
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", vocab, width, init="normal")}, width, norm=None, rate=rate)

    def one(see, cross: bool, layers: int):
        return (embedder, partial(Context, see, bias=partial(bias, both=not cross)),
                partial(Stack, [(partial(block, cross=cross), layers), (partial(Final, width, norm="rms", eps=eps, rate=rate), 1)]))

    head = partial(VocabularyHead, vocab, width, act=None, bias=False, scaled=tied, init="fan_in")
    decoder = partial(Network, *one(masks.causal, True, config["num_decoder_layers"]))
    net = partial(Network, *one(masks.full, False, config["num_layers"]), {"lm": head}, decoder=decoder)
    return Build({"model": net}, SHARED | (TIED if tied else {}))


def mine(nets: Mapping[str, Network]) -> bool:
    return set(nets) == {"model"} and nets["model"].decoder is not None


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it, from its encoder; the rest is held to what `build` makes of it."""
    need(isinstance(net.embedder, Embedder) and set(net.embedder.parts) == {"tokens"}, "its embeddings must be tokens alone")
    for side in (net, net.decoder):
        need(isinstance(side.stack, Stack) and [type(g) for g in side.stack.groups] == [T5Block, Final],
             "its stacks must be T5 blocks and the final norm")
    need(isinstance(net.context, Context) and isinstance(net.context.bias, Relative), "its positions must be relative")
    need(set(net.heads) == {"lm"}, "its one head must be lm")
    block, bias, act = net.stack.groups[0], net.context.bias, act_name(net.stack.groups[0].mlp.act)
    return {
        "architectures": ["T5ForConditionalGeneration"], "model_type": MODEL, "is_encoder_decoder": True,
        "vocab_size": rows(build, f"{name}/embedder/parts/tokens/table"), "d_model": block.mlp.wo.kernel.shape[-1],
        "d_kv": block.attention.query.kernel.shape[-1] // block.attention.heads, "d_ff": block.mlp.wi.kernel.shape[-1],
        "num_layers": net.stack.counts[0], "num_decoder_layers": net.decoder.stack.counts[0], "num_heads": block.attention.heads,
        "relative_attention_num_buckets": bias.table.shape[0], "relative_attention_max_distance": bias.reach,
        "dropout_rate": block.rate, "layer_norm_epsilon": block.norms["mlp"].eps,
        "tie_word_embeddings": f"{name}/heads/lm/table" not in build.leaves,
        "feed_forward_proj": act if block.mlp.gate is None else GATE + ("gelu" if act == "gelu_new" else act),
    }


def ids(symbols: Mapping[str, int]) -> dict:
    """config.json's ids of a vocabulary's symbols; the decoder begins with pad, as in span corruption."""
    pad = symbols.get("pad")
    return {"pad_token_id": pad, "eos_token_id": symbols.get("eos"), "decoder_start_token_id": pad}
