"""ELECTRA against transformers' ElectraForMaskedLM (generator) and ElectraForPreTraining (discriminator), in float32: hidden states,
logits, losses, and every gradient of the whole objective, MLM + 50 RTD, through the shared tables and the sampled tokens.

The error of a leaf is max|a - b| / max|b|.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert.electra import names
from ptmjax.convert.names import present, pull, push
from ptmjax.objectives.rtd import Rtd
from ptmjax.types import Key, Keys, slots
from tests.models.bert import LENGTH, TYPES, VOCAB, batch, wild
from tests.models.electra import DISCRIMINATOR, EMBED, GENERATOR, electra

NEAR = 1e-5
SLOTS = 6
NETS = ("generator", "discriminator")


def outside(kind, net: str, size: tuple[int, int, int, int], params: dict, build):
    """transformers' model with our parameters."""
    width, heads, layers, hidden = size
    config = transformers.ElectraConfig(
        vocab_size=VOCAB, embedding_size=EMBED, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=hidden,
        max_position_embeddings=LENGTH, type_vocab_size=TYPES, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager")
    model, weights = kind(config), push(names(build, net), params, build)
    model.electra.embeddings.word_embeddings.padding_idx = None  # it would drop the gradient of a sample that is the pad id
    named = dict(model.named_parameters())
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    return model


class Watched:
    """A network that keeps what it is given and what it gives."""

    def __init__(self, net):
        self.net = net

    def encode(self, batch, key=None):
        self.batch, self.out = batch, self.net.encode(batch, key, capture=frozenset({"hidden"}))
        return self.out

    def head(self, name, h, where=None):
        self.scores = self.net.head(name, h, where)
        return self.scores


@pytest.fixture(scope="module")
def both():
    b, build, objective = batch(), electra(), Rtd(SLOTS)
    params = {name: 4 * x if name.endswith("rtd/out/kernel") else x for name, x in wild(build).items()}
    keys = Keys(None, Key(jax.random.key(0), b["index"]))

    def loss(params):
        nets = {name: Watched(net) for name, net in build.nets(params).items()}
        sums, _, metrics = objective.losses(nets, b, keys, jnp.int32(0), {})
        more = {name: (net.out.aux[0]["hidden"], net.scores) for name, net in nets.items()} | {"shown": nets["discriminator"].batch["tokens"]}
        means = {name: s.mean() for name, s in sums.items()}
        return objective.total(means), (means, {name: s.mean() for name, s in metrics.items()}, more)

    (total, (means, metrics, more)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return {"losses": means, "metrics": metrics, "total": total, "grads": grads} | more, reference(params, build, b, np.asarray(more["shown"])), b, build


def reference(params: dict, build, b: dict, shown: np.ndarray):
    """transformers' outputs and gradients of both networks, the discriminator's on the tokens that ours was shown."""
    t = {name: torch.from_numpy(np.asarray(b[name]).copy()).long() for name in ("tokens", "types", "segments", "targets")}
    masked = torch.from_numpy(np.asarray(b["weights"]) > 0)
    see = {"attention_mask": t["segments"], "token_type_ids": t["types"], "output_hidden_states": True}
    generator = outside(transformers.ElectraForMaskedLM, "generator", GENERATOR, params, build)
    made = generator(t["tokens"], labels=torch.where(masked, t["targets"], -100), **see)
    made.loss.backward()
    discriminator = outside(transformers.ElectraForPreTraining, "discriminator", DISCRIMINATOR, params, build)
    told = discriminator(torch.from_numpy(shown.copy()).long(), labels=(torch.from_numpy(shown.copy()) != t["targets"]).long(), **see)
    (50 * told.loss).backward()
    grads = [{name: p.grad.numpy() for name, p in model.named_parameters()} for model in (generator, discriminator)]
    return made, told, dict(zip(NETS, grads))


def test_the_name_maps_use_every_parameter(both):
    build = both[3]
    assert {owner for net in NETS for _, owner, *_ in present(names(build, net), build)} == set(build.leaves)


def test_hidden_states_of_every_layer(both, near):
    ours, (made, told, _), b, _ = both
    real = np.asarray(b["segments"]) > 0
    for net, out in (("generator", made), ("discriminator", told)):
        assert len(ours[net][0]) == len(out.hidden_states) - 1
        for x, y in zip(ours[net][0], out.hidden_states[1:]):
            near("hidden states", np.asarray(x)[real], y.detach().numpy()[real])


def test_logits(both, near):
    ours, (made, told, _), b, _ = both
    at = slots(b["weights"], SLOTS)
    there, full = np.take_along_axis(made.logits.detach().numpy(), np.asarray(at.where)[..., None], 1), np.asarray(at.weight) > 0
    assert there[full].std() >= 1  # small logits would hide a bug
    near("logits", np.asarray(ours["generator"][1])[full][:, :VOCAB], there[full])
    real = np.asarray(b["segments"]) > 0
    scores = told.logits.detach().numpy()[real]
    assert scores.std() >= 0.5
    near("logits", np.asarray(ours["discriminator"][1])[..., 0][real], scores)


def test_losses(both, near):
    ours, (made, told, _), _, _ = both
    near("losses", ours["losses"]["mlm"], made.loss.item())
    near("losses", ours["losses"]["rtd"], told.loss.item())
    near("losses", ours["total"], made.loss.item() + 50 * told.loss.item())


def test_every_gradient(both, near):
    """A shared leaf gets the sum of both networks'."""
    ours, (_, _, grads), _, build = both
    parts = [pull(names(build, net), grads[net], build, net) for net in NETS]  # the padding of the vocabulary is 0
    want = {path: sum(part[path] for part in parts if path in part) for path in build.leaves}
    for path, g in want.items():
        if not path.endswith("key/bias"):
            assert np.abs(g).max() > 1e-3, path
            near("gradients", ours["grads"][path], g)
    keys = [path for path in want if path.endswith("key/bias")]  # the true gradient is 0, times 50
    assert len(keys) == 2 and max(np.abs(x[path]).max() for path in keys for x in (want, ours["grads"])) <= 50 * NEAR


def test_what_the_discriminator_is_shown_and_told(both):
    """Only scored positions differ from the original; the metrics follow from scores and inequality."""
    ours, (_, told, _), b, _ = both
    shown, original, real = np.asarray(ours["shown"]), np.asarray(b["targets"]), np.asarray(b["segments"]) > 0
    fake = shown != original
    assert fake.any() and not fake[np.asarray(b["weights"]) == 0].any() and (shown < VOCAB).all()
    found = (told.logits.detach().numpy() > 0) & real
    both_, m = (found & fake).sum(), ours["metrics"]
    want = {"replaced": fake[real].mean(), "precision": both_ / found.sum(), "recall": both_ / fake.sum(), "rtd_accuracy": (found == fake)[real].mean(),
            "f1": 2 * both_ / (found.sum() + fake.sum()), "overflow": 0}
    assert {name: float(m[name]) for name in want} == pytest.approx(want, rel=1e-6)
