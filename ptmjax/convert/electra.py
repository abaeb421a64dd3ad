"""ELECTRA (Clark et al. 2020) in transformers' layout: a folder for the generator and one for the discriminator."""
from collections.abc import Mapping
from functools import partial

from ptmjax.convert import bert
from ptmjax.convert.names import Name, linear, norm
from ptmjax.convert.network import act_of, need
from ptmjax.models.heads import Classifier, VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.linear import Linear
from ptmjax.training.build import Build

MODEL = "electra"
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


def network(tensors: Mapping) -> str:
    """Which network a folder holds: the generator's has a language model head."""
    return "generator" if "generator_lm_head.bias" in tensors else "discriminator"


def plain(name: str) -> str:
    return name


def copies(config: Mapping) -> dict[str, str]:
    """Tensor -> the one to which it is tied."""
    return {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}


def build(config: Mapping, tensors: Mapping) -> Build:
    """The one network of a folder, under its name."""
    net, width, embed = network(tensors), config["hidden_size"], config["embedding_size"]
    eps, init = config["layer_norm_eps"], config.get("initializer_range", 0.02)
    head = {"generator": partial(VocabularyHead, config["vocab_size"], width, embed=embed, eps=eps, init=init),
            "discriminator": partial(Classifier, 1, width, first=False, act=act_of(config["hidden_act"]), init=init)}[net]
    project = None if width == embed else partial(Linear, embed, width, (None, "embed"), init=init)
    whole = bert.encoder(config, width, embed, {KINDS[net][1]: head}, project)
    return Build({net: whole}, {f"{net}/heads/mlm/table": f"{net}/embedder/parts/tokens/table"} if net == "generator" else {})


def mine(nets: Mapping[str, Network]) -> bool:
    return set(nets) <= KINDS.keys()


def config(net: Network, build: Build, name: str) -> dict:
    """config.json of the network, as transformers wants it."""
    kind, head = KINDS[name]
    need(set(net.heads) == {head}, f"the {name}'s one head must be {head}")
    table = build.owner(f"{name}/embedder/parts/tokens/table")
    need(head != "mlm" or build.owner(f"{name}/heads/mlm/table") == table, "the generator's head must be tied to the tokens")
    return {"architectures": [kind], "model_type": MODEL, "pad_token_id": 0, "tie_word_embeddings": True,
            "embedding_size": build.leaves[table].shape[1]} | bert.sizes(net)
