"""Hidden states, logits, losses and every gradient of ALBERT against transformers' AlbertForPreTraining, in float32, for one group of
layers and for two; tables are narrower than the layers.

The error of a leaf is max|a - b| / max|b|. A block's gradient is a sum over the layers that share it.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert.albert import names
from ptmjax.convert.names import present, push
from ptmjax.types import Key, Keys
from tests.models.albert import EMBED, HEADS, HIDDEN, WIDTH, albert, pretraining
from tests.models.bert import LENGTH, TYPES, VOCAB, batch, wild

NEAR = 1e-5
COUNTS = [pytest.param((4,), id="1 group", marks=pytest.mark.slow), pytest.param((2, 2), id="2 groups")]


def reference(weights: dict[str, np.ndarray], b: dict, counts: tuple[int, ...]):
    """transformers' hidden states, logits, losses and gradients."""
    config = transformers.AlbertConfig(
        vocab_size=VOCAB, embedding_size=EMBED, hidden_size=WIDTH, num_hidden_layers=sum(counts), num_hidden_groups=len(counts),
        num_attention_heads=HEADS, intermediate_size=HIDDEN, max_position_embeddings=LENGTH, type_vocab_size=TYPES, classifier_dropout_prob=0,
        attn_implementation="eager")
    model = transformers.AlbertForPreTraining(config)
    model.albert.embeddings.word_embeddings.padding_idx = None  # it would drop the gradient of the pad id
    named = dict(model.named_parameters())
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if name in ("tokens", "types", "segments", "targets", "label")}
    labels = torch.where(torch.from_numpy(np.asarray(b["weights"]) > 0), t["targets"], -100)
    out = model(t["tokens"], attention_mask=t["segments"], token_type_ids=t["types"], labels=labels, sentence_order_label=t["label"],
                output_hidden_states=True)
    out.loss.backward()
    entropy = torch.nn.functional.cross_entropy
    losses = {"mlm": entropy(out.prediction_logits.flatten(0, 1), labels.flatten()), "sop": entropy(out.sop_logits, t["label"])}
    return out, losses, {name: p.grad.numpy() for name, p in named.items()}


@pytest.fixture(scope="module", params=COUNTS)
def both(request):
    b, build = batch(), albert(request.param)
    params, objective = wild(build), pretraining()
    keys = Keys(None, Key(jax.random.key(0), b["index"]))

    def loss(params):
        net = build.nets(params)["model"]
        sums, _, _ = objective.losses({"model": net}, b, keys, jnp.int32(0), {})
        out = net.encode(b, capture=frozenset({"hidden"}))
        seen = [h for aux in out.aux for h in aux["hidden"]], net.head("mlm", out.state), net.head("sop", out.state)
        return objective.total({name: s.mean() for name, s in sums.items()}), (sums, seen)

    (total, (sums, (hidden, mlm, sop))), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    ours = {"hidden": hidden, "mlm": mlm, "sop": sop, "losses": {name: s.mean() for name, s in sums.items()}, "total": total, "raw": grads,
            "grads": push(names(build, "model"), grads, build),
            "used": {owner for _, owner, *_ in present(names(build, "model"), build)}, "leaves": set(build.leaves)}
    return ours, reference(push(names(build, "model"), params, build), b, request.param), np.asarray(b["segments"]) > 0


def test_the_name_map_uses_every_parameter(both):
    assert both[0]["used"] == both[0]["leaves"]


def test_hidden_states_of_every_layer(both, near):
    ours, (theirs, _, _), real = both
    assert len(ours["hidden"]) == 4 == len(theirs.hidden_states) - 1
    for a, b in zip(ours["hidden"], theirs.hidden_states[1:]):
        near("hidden states", np.asarray(a)[real], b.detach().numpy()[real])


def test_logits(both, near):
    ours, (theirs, _, _), real = both
    mlm, sop = theirs.prediction_logits.detach().numpy()[real], theirs.sop_logits.detach().numpy()
    assert mlm.std() >= 1 and np.abs(sop).max() >= 0.5  # small logits would hide a bug
    near("logits", np.asarray(ours["mlm"])[real][:, :VOCAB], mlm)
    near("logits", ours["sop"], sop)


def test_losses(both, near):
    ours, (theirs, losses, _), _ = both
    assert set(ours["losses"]) == set(losses)
    for name, x in losses.items():
        near("losses", ours["losses"][name], x.item())
    near("losses", ours["total"], theirs.loss.item())


def test_every_gradient(both, near):
    ours, (_, _, grads), _ = both
    assert set(ours["grads"]) == set(grads)
    for name, g in grads.items():
        if name.endswith("attention.key.bias"):  # softmax does not see a constant added to all its scores: the true gradient is 0
            assert max(np.abs(g).max(), np.abs(ours["grads"][name]).max()) <= NEAR
        else:
            assert np.abs(g).max() > 1e-3, name
            near("gradients", ours["grads"][name], g)
