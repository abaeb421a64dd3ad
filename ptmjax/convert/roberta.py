"""RoBERTa (Liu et al. 2019) in transformers' layout, and what has it under another name: XLM-R (Conneau et al. 2020)."""
from collections.abc import Collection, Mapping
from functools import partial

from ptmjax.convert import bert
from ptmjax.convert.fields import parsed
from ptmjax.convert.names import Name, linear, norm
from ptmjax.convert.network import need
from ptmjax.models.embedders import Embedder, Positions
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.training.build import Build
from ptmjax.types import UserError

MODEL, ALSO = "roberta", ("xlm-roberta",)
TEXT = ("cls",), ("sep",), ("input_ids", "attention_mask"), ("sep",)
KINDS = {("mlm",): "RobertaForMaskedLM", (): "RobertaModel"}
TABLE = "roberta.embeddings.word_embeddings.weight"


def pad(x: object) -> int:
    """The id of pad, behind which positions begin."""
    if type(x) is not int or x < 0:
        raise ValueError("a whole number of at least 0")
    return x


FIELDS = bert.FIELDS | {"pad_token_id": pad}
DEFAULTS = bert.DEFAULTS | {"pad_token_id": 1}


def names(build: Build, net: str) -> list[Name]:
    return [
        *bert.embeddings("model/embedder", "roberta.embeddings"), *bert.layers("model/stack", "roberta.encoder"),
        *linear("model/heads/mlm/transform", "lm_head.dense"), *norm("model/heads/mlm/norm", "lm_head.layer_norm"),
        Name("model/heads/mlm/bias", "lm_head.bias"),
    ]


def fields(config: Mapping, where: str) -> dict:
    out = parsed(config, FIELDS, DEFAULTS, where)
    if out["max_position_embeddings"] <= out["pad_token_id"] + 1:
        raise UserError(f"{where} has max_position_embeddings {out['max_position_embeddings']}, none behind those up to its pad_token_id "
                        f"{out['pad_token_id']}: fetch it again")
    return out


def network(tensors: Collection[str]) -> str:
    """Which network a folder holds."""
    return "model"


def plain(name: str) -> str:
    """Bare encoders have no "roberta."."""
    return name if name.startswith(("roberta.", "lm_head.", "classifier.")) else f"roberta.{name}"


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    return {"lm_head.decoder.weight": TABLE, "lm_head.decoder.bias": "lm_head.bias"}


def build(config: Mapping, tensors: Collection[str]) -> Build:
    """The network of a folder, with its head where it has one."""
    width, init = config["hidden_size"], config["initializer_range"]
    heads = {}
    if "lm_head.bias" in {plain(name) for name in tensors}:
        # transformers has this head's gelu fixed, whatever hidden_act is
        heads["mlm"] = partial(VocabularyHead, config["vocab_size"], width, act="gelu", eps=config["layer_norm_eps"], init=init)
    encoder = bert.encoder(config, width, width, heads, offset=config["pad_token_id"] + 1)
    return Build({"model": encoder}, bert.TIES if heads else {})


def mine(nets: Mapping[str, Network]) -> bool:
    """BERT's, but that its positions begin behind those of pad."""
    if set(nets) != {"model"} or nets["model"].decoder is not None or not isinstance(nets["model"].embedder, Embedder):
        return False
    positions = nets["model"].embedder.parts.get("positions")
    return isinstance(positions, Positions) and positions.offset > 0


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it; what it has no word for is held to what `build` makes of it."""
    heads = tuple(sorted(net.heads))
    need(heads in KINDS, f"its heads are {', '.join(heads)}; known is mlm")
    sizes = bert.sizes(net, build, name)
    return {"architectures": [KINDS[heads]], "model_type": MODEL, "tie_word_embeddings": True,
            "pad_token_id": net.embedder.parts["positions"].offset - 1} | sizes


def ids(symbols: Mapping[str, int]) -> dict:
    """config.json's ids of a vocabulary's symbols."""
    return {"pad_token_id": symbols.get("pad"), "bos_token_id": symbols.get("cls"), "eos_token_id": symbols.get("eos")}
