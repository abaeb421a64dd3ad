"""ELECTRA (Clark et al. 2020) in transformers' layout: a folder for the generator and one for the discriminator."""
from collections.abc import Collection, Mapping
from functools import partial

from ptmjax.convert import bert
from ptmjax.convert.fields import OURS, count, parsed
from ptmjax.convert.names import Name, linear, norm
from ptmjax.convert.network import need
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.linear import Linear
from ptmjax.training.build import Build

MODEL = "electra"
TEXT, ids = bert.TEXT, bert.ids
KINDS = {"generator": ("ElectraForMaskedLM", "mlm"), "discriminator": ("ElectraForPreTraining", "rtd")}


def names(build: Build, net: str) -> list[Name]:
    heads = {
        "generator": [*linear("generator/heads/mlm/transform", "generator_predictions.dense"),
                      *norm("generator/heads/mlm/norm", "generator_predictions.LayerNorm"),
                      Name("generator/heads/mlm/bias", "generator_lm_head.bias")],
        "discriminator": [*linear("discriminator/heads/rtd/dense", "discriminator_predictions.dense"),
                          *linear("discriminator/heads/rtd/out", "discriminator_predictions.dense_prediction")],
    }
    return [*bert.embeddings(f"{net}/embedder", "electra.embeddings"), *linear(f"{net}/project", "electra.embeddings_project"),
            *bert.layers(f"{net}/stack", "electra.encoder"), *heads[net]]


def fields(config: Mapping, where: str) -> dict:
    return parsed(config, bert.FIELDS | {"embedding_size": count}, bert.DEFAULTS | {"embedding_size": 128}, where)


def network(tensors: Collection[str]) -> str:
    """Which network a folder holds: the generator's has a language model head."""
    return "generator" if "generator_lm_head.bias" in tensors else "discriminator"


def plain(name: str) -> str:
    return name


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    return {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}


def build(config: Mapping, tensors: Collection[str]) -> Build:
    """The one network of a folder, under its name."""
    net, width, embed = network(tensors), config["hidden_size"], config["embedding_size"]
    eps, init = config["layer_norm_eps"], config["initializer_range"]
    head = {"generator": partial(VocabularyHead, config["vocab_size"], width, embed=embed, eps=eps, init=init),
            "discriminator": partial(Classifier, 1, width, first=False, act=OURS[config["hidden_act"]], init=init)}[net]
    project = None if width == embed else partial(Linear, embed, width, (None, "embed"), init=init)
    whole = bert.encoder(config, width, embed, {KINDS[net][1]: head}, project)
    return Build({net: whole}, {f"{net}/heads/mlm/table": f"{net}/embedder/parts/tokens/table"} if net == "generator" else {})


def mine(nets: Mapping[str, Network]) -> bool:
    return set(nets) <= KINDS.keys()


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it; what it has no word for is held to what `build` makes of it."""
    kind, head = KINDS[name]
    need(set(net.heads) == {head}, f"the {name}'s one head must be {head}")
    sizes = bert.sizes(net, build, name)
    return {"architectures": [kind], "model_type": MODEL, "tie_word_embeddings": True,
            "embedding_size": net.embedder.parts["tokens"].table.shape[1]} | sizes
