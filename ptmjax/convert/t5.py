"""T5 1.0 and 1.1 (Raffel et al. 2020) in transformers' layout."""
from collections.abc import Mapping
from functools import partial

from ptmjax.convert.names import Name
from ptmjax.convert.network import act_name, act_of, is_mask, need
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
    for number, (part, module, leaves) in enumerate(parts):
        at, here = f"{theirs}.block.{{}}.layer.{number}", f"{ours}/stack/groups/0"
        out += [Name(f"{here}/norms/{part}/scale", f"{at}.layer_norm.weight"), *matrices(f"{here}/{part}", f"{at}.{module}", leaves)]
    return out


def names(build: Build, net: str) -> list[Name]:
    gated = "model/stack/groups/0/mlp/gate/kernel" in build.leaves
    head = [Name("model/heads/lm/table", "lm_head.weight")] * ("model/heads/lm/table" in build.leaves)  # not where it is tied
    return [Name("model/embedder/parts/tokens/table", "shared.weight"), *head,
            *side("model", "encoder", False, gated), *side("model/decoder", "decoder", True, gated)]


def network(tensors: Mapping) -> str:
    """Which network a folder holds."""
    return "model"


def plain(name: str) -> str:
    return name


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    theirs = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] + ["lm_head.weight"] * tied(config)
    return dict.fromkeys(theirs, "shared.weight")


def tied(config: Mapping) -> bool:
    return config.get("tie_word_embeddings", True)


def build(config: Mapping, tensors: Mapping) -> Build:
    """The networks of a folder."""
    width, vocab, eps, rate = config["d_model"], config["vocab_size"], config["layer_norm_epsilon"], config["dropout_rate"]
    act = act_of(config["feed_forward_proj"].removeprefix("gated-"))
    if config["feed_forward_proj"].startswith("gated-"):
        act = GATED + ("gelu_tanh" if act == "gelu" else act)  # T5 1.1's gelu is the tanh one
    block = partial(T5Block, width, config["num_heads"], config["d_kv"], config["d_ff"], act=act, eps=eps, rate=rate)
    bias = partial(Relative, config["num_heads"], buckets=config["relative_attention_num_buckets"],
                   reach=config.get("relative_attention_max_distance", 128))
    embedder = partial(Embedder, {"tokens": partial(Table, "tokens", vocab, width, init="normal")}, width, norm=None, rate=rate)

    def one(see, cross: bool, layers: int):
        return (embedder, partial(Context, see, bias=partial(bias, both=not cross)),
                partial(Stack, [(partial(block, cross=cross), layers), (partial(Final, width, norm="rms", eps=eps, rate=rate), 1)]))

    head = partial(VocabularyHead, vocab, width, act=None, bias=False, scaled=tied(config), init="fan_in")
    decoder = partial(Network, *one(masks.causal, True, config.get("num_decoder_layers") or config["num_layers"]))
    net = partial(Network, *one(masks.full, False, config["num_layers"]), {"lm": head}, decoder=decoder)
    return Build({"model": net}, SHARED | (TIED if tied(config) else {}))


def mine(nets: Mapping[str, Network]) -> bool:
    return set(nets) == {"model"} and nets["model"].decoder is not None


def check(net: Network, see, cross: bool) -> None:
    """A UserError where T5's layout has no place for one side."""
    context, groups = net.context, net.stack.groups
    need(set(net.embedder.parts) == {"tokens"} and net.embedder.norm is None, "its embeddings must be tokens alone, without a norm")
    need(is_mask(context.see, see) and is_mask(context.cross, masks.cross)
         and context.rotary is None and isinstance(context.bias, Relative) and context.bias.both is not cross,
         "its encoder must see all, its decoder what came before, with relative positions of their kind")
    need(len(groups) == 2 and isinstance(groups[0], T5Block) and isinstance(groups[1], Final) and (groups[0].cross is not None) is cross,
         "its stacks must be T5 blocks and the final norm, with cross attention in the decoder alone")


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it."""
    check(net, masks.full, False)
    check(net.decoder, masks.causal, True)
    need(set(net.heads) == {"lm"} and net.heads["lm"].bias is None, "its one head must be lm, without a bias")
    block, table, head = net.stack.groups[0], net.embedder.parts["tokens"].table, net.heads["lm"]
    tie = "model/heads/lm/table" not in build.leaves
    need(tie is (head.scale is not None), "a tied head's scores are scaled, those of an untied one are not")
    act = act_name(block.mlp.act)
    return {
        "architectures": ["T5ForConditionalGeneration"], "model_type": MODEL, "is_encoder_decoder": True, "pad_token_id": 0,
        "decoder_start_token_id": 0, "vocab_size": table.shape[0] - table.get_metadata("unused") // table.shape[1],
        "d_model": table.shape[1], "d_kv": block.attention.query.kernel.shape[-1] // block.attention.heads,
        "d_ff": block.mlp.wi.kernel.shape[-1], "num_layers": net.stack.counts[0], "num_decoder_layers": net.decoder.stack.counts[0],
        "num_heads": block.attention.heads, "relative_attention_num_buckets": net.context.bias.table.shape[0],
        "relative_attention_max_distance": net.context.bias.reach, "dropout_rate": block.rate,
        "layer_norm_epsilon": block.norms["mlp"].eps, "tie_word_embeddings": tie,
        "feed_forward_proj": act if block.mlp.gate is None else f"gated-{act.removesuffix('_new')}",
    }
