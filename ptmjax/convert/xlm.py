"""XLM (Conneau and Lample 2019) in transformers' layout: an encoder with an embedding of the language at every token.

transformers leaves those embeddings out where a call has no `langs`, and begins no position again without `position_ids`: an
exported model wants both, as the rows of data/translation.py have them.
"""
from collections.abc import Collection, Mapping
from functools import partial

from ptmjax.convert import bert
from ptmjax.convert.fields import count, flag, number, only, parsed
from ptmjax.convert.names import Name, linear, norm
from ptmjax.convert.network import need
from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.block import Block
from ptmjax.nn.mlp import ACTIVATIONS
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build

MODEL = "xlm"
TIES, TEXT = bert.TIES, (("cls",), ("sep",), ("input_ids", "attention_mask"))
FIELDS = {
    "vocab_size": count, "emb_dim": count, "n_layers": count, "n_heads": count, "n_langs": count, "max_position_embeddings": count,
    "dropout": number, "attention_dropout": number, "layer_norm_eps": number, "embed_init_std": number, "init_std": number,
    "gelu_activation": flag, "use_lang_emb": flag, "sinusoidal_embeddings": only(False), "causal": only(False), "asm": only(False),
    "is_encoder": only(True),
}
DEFAULTS = {"n_langs": 1, "max_position_embeddings": 512, "dropout": 0.1, "attention_dropout": 0.1, "layer_norm_eps": 1e-12,
            "embed_init_std": 2048**-0.5, "init_std": 0.02, "gelu_activation": True, "use_lang_emb": True, "sinusoidal_embeddings": False,
            "causal": False, "asm": False, "is_encoder": True}
EARLIER = {"n_words": "vocab_size", "dim": "emb_dim"}  # spellings of older files
LANGUAGES = "model/embedder/parts/languages/table"


def names(build: Build, net: str) -> list[Name]:
    a, b = "model/stack/groups/0", "transformer"
    parts = {"tokens": "embeddings", "positions": "position_embeddings", "languages": "lang_embeddings"}
    return [
        *(Name(f"model/embedder/parts/{part}/table", f"{b}.{name}.weight") for part, name in parts.items()),
        *norm("model/embedder/norm", f"{b}.layer_norm_emb"),
        *(name for part, theirs in (("query", "q_lin"), ("key", "k_lin"), ("value", "v_lin"), ("out", "out_lin"))
          for name in linear(f"{a}/attention/{part}", f"{b}.attentions.{{}}.{theirs}")),
        *norm(f"{a}/norms/attention", f"{b}.layer_norm1.{{}}"),
        *linear(f"{a}/mlp/wi", f"{b}.ffns.{{}}.lin1"), *linear(f"{a}/mlp/wo", f"{b}.ffns.{{}}.lin2"),
        *norm(f"{a}/norms/mlp", f"{b}.layer_norm2.{{}}"),
        Name("model/heads/mlm/bias", "pred_layer.proj.bias"),
    ]


def fields(config: Mapping, where: str) -> dict:
    return parsed({EARLIER.get(name, name): x for name, x in config.items()}, FIELDS, DEFAULTS, where)


def network(tensors: Collection[str]) -> str:
    """Which network a folder holds."""
    return "model"


def plain(name: str) -> str:
    """Bare encoders have no "transformer."."""
    return name if name.startswith(("transformer.", "pred_layer.")) else f"transformer.{name}"


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    return {"pred_layer.proj.weight": "transformer.embeddings.weight"}


def build(config: Mapping, tensors: Collection[str]) -> Build:
    """The network of a folder, with its head where it has one; its feed-forward layers are four times as wide, as the layout has them."""
    width, eps, init = config["emb_dim"], config["layer_norm_eps"], config["init_std"]
    table = partial(Table, width=width, init=config["embed_init_std"])
    parts = {"tokens": partial(table, "tokens", config["vocab_size"]),
             "positions": partial(Positions, config["max_position_embeddings"], width, init=config["embed_init_std"])}
    if config["use_lang_emb"] and config["n_langs"] > 1:
        parts["languages"] = partial(table, "languages", config["n_langs"], vocabulary=False)
    block = partial(Block, width, config["n_heads"], 4 * width, act="gelu" if config["gelu_activation"] else "relu", eps=eps,
                    rate=config["dropout"], attention_rate=config["attention_dropout"], init=init)
    has = any(plain(name) == "pred_layer.proj.bias" for name in tensors)
    heads = {"mlm": partial(VocabularyHead, config["vocab_size"], width, act=None, init=init)} if has else {}
    net = partial(Network, partial(Embedder, parts, width, eps=eps, rate=config["dropout"]), Context,
                  partial(Stack, [(block, config["n_layers"])]), heads)
    return Build({"model": net}, TIES if has else {})


def mine(nets: Mapping[str, Network]) -> bool:
    """A network with embeddings of languages; without, it is written as a BERT."""
    return set(nets) == {"model"} and nets["model"].decoder is None and "languages" in getattr(nets["model"].embedder, "parts", {})


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it."""
    need(set(net.embedder.parts) == {"tokens", "positions", "languages"},
         "its embeddings must be tokens, learned positions and languages, as those of xlm_mlm_tlm are")
    need(isinstance(net.stack, Stack) and len(net.stack.groups) == 1 and isinstance(net.stack.groups[0], Block),
         "its stack must be one group of blocks")
    need(set(net.heads) <= {"mlm"}, f"its heads are {', '.join(sorted(net.heads))}; known is mlm")
    block, table = net.stack.groups[0], lambda part: bert.rows(build, f"{name}/embedder/parts/{part}/table")
    width = block.mlp.wo.kernel.shape[-1]
    need(block.mlp.act in (ACTIVATIONS["gelu"], ACTIVATIONS["relu"]), "its activation must be gelu or relu")
    need(block.mlp.wi.kernel.shape[-1] == 4 * width, "its feed-forward layers must be four times as wide as the model")
    need(table("languages") > 1, "it must have more than one language")
    return {
        "architectures": ["XLMWithLMHeadModel" if net.heads else "XLMModel"], "model_type": MODEL, "vocab_size": table("tokens"),
        "emb_dim": width, "n_layers": net.stack.counts[0], "n_heads": block.attention.heads, "n_langs": table("languages"),
        "max_position_embeddings": table("positions"), "dropout": block.rate, "attention_dropout": block.attention_rate,
        "layer_norm_eps": block.norms["mlp"].eps, "gelu_activation": block.mlp.act is ACTIVATIONS["gelu"], "use_lang_emb": True,
        "tie_word_embeddings": True,
    }


def ids(symbols: Mapping[str, int]) -> dict:
    """config.json's ids of a vocabulary's symbols."""
    theirs = {"pad": "pad_index", "unk": "unk_index", "cls": "bos_index", "eos": "eos_index", "mask": "mask_index"}
    return {"pad_token_id": symbols.get("pad")} | {theirs[name]: x for name, x in symbols.items() if name in theirs}
