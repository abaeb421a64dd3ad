"""Hidden states, logits, losses and every gradient of BERT against transformers' BertForPreTraining, in float32.

The error of a leaf is max|a - b| / max|b|.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert.bert import names
from ptmjax.convert.names import present, push
from ptmjax.types import Key, Keys
from tests.models.bert import LENGTH, TYPES, VOCAB, batch, bert, pretraining, wild

NEAR = 1e-5


def taken(params: dict, build) -> dict[str, np.ndarray]:
    """Our parameters or gradients under transformers' names and in its shapes, without the padding of the vocabulary."""
    return push(names(build, "model"), params, build)


def reference(weights: dict[str, np.ndarray], b: dict, layers: int):
    """transformers' hidden states, logits, losses and gradients."""
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=layers, num_attention_heads=3, intermediate_size=40, max_position_embeddings=LENGTH,
        type_vocab_size=TYPES, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager")
    model = transformers.BertForPreTraining(config)
    named = dict(model.named_parameters())
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if name in ("tokens", "types", "segments", "targets", "label")}
    labels = torch.where(torch.from_numpy(np.asarray(b["weights"]) > 0), t["targets"], -100)
    out = model(t["tokens"], attention_mask=t["segments"], token_type_ids=t["types"], labels=labels, next_sentence_label=t["label"],
                output_hidden_states=True)
    out.loss.backward()
    entropy = torch.nn.functional.cross_entropy
    losses = {"mlm": entropy(out.prediction_logits.flatten(0, 1), labels.flatten()), "nsp": entropy(out.seq_relationship_logits, t["label"])}
    return out, losses, {name: p.grad.numpy() for name, p in named.items()}


@pytest.fixture(scope="module")
def both():
    layers, b = 3, batch()
    build = bert()
    params, objective = wild(build), pretraining()
    keys = Keys(None, Key(jax.random.key(0), b["index"]))

    def loss(params):
        sums, _, metrics = objective.losses(build.nets(params), b, keys, jnp.int32(0), {})
        return objective.total({name: s.mean() for name, s in sums.items()}), (sums, metrics)

    (total, (sums, _)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    net = build.nets(params)["model"]
    out = net.encode(b, capture=frozenset({"hidden"}))
    ours = {"hidden": [np.asarray(h) for h in out.aux[0]["hidden"]], "mlm": net.head("mlm", out.state), "nsp": net.head("nsp", out.state),
            "losses": {name: s.mean() for name, s in sums.items()}, "total": total, "raw": grads, "grads": taken(grads, build),
            "used": {owner for _, owner, *_ in present(names(build, "model"), build)}, "leaves": set(build.leaves)}
    return ours, reference(taken(params, build), b, layers), np.asarray(b["segments"]) > 0


def test_the_name_map_uses_every_parameter(both):
    assert both[0]["used"] == both[0]["leaves"]


def test_hidden_states_of_every_layer(both, near):
    ours, (theirs, _, _), real = both
    assert len(ours["hidden"]) == 3 == len(theirs.hidden_states) - 1
    for a, b in zip(ours["hidden"], theirs.hidden_states[1:]):
        near("hidden states", a[real], b.detach().numpy()[real])


def test_logits(both, near):
    ours, (theirs, _, _), real = both
    mlm, nsp = theirs.prediction_logits.detach().numpy()[real], theirs.seq_relationship_logits.detach().numpy()
    assert mlm.std() >= 1 and np.abs(nsp).max() >= 0.5  # small logits would hide a bug
    near("logits", np.asarray(ours["mlm"])[real][:, :VOCAB], mlm)
    near("logits", ours["nsp"], nsp)
    assert (np.asarray(ours["mlm"])[..., VOCAB:] <= -1e9).all() and ours["mlm"].shape[-1] == 256


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
        if name.endswith("self.key.bias"):  # softmax does not see a constant added to all its scores: the true gradient is 0
            assert max(np.abs(g).max(), np.abs(ours["grads"][name]).max()) <= NEAR
        else:
            assert np.abs(g).max() > 1e-3, name
            near("gradients", ours["grads"][name], g)


def test_the_padding_of_the_vocabulary_gets_no_gradient(both):
    for path in ("model/embedder/parts/tokens/table", "model/heads/mlm/bias"):
        assert both[0]["raw"][path].shape[0] == 256 and not np.asarray(both[0]["raw"][path][VOCAB:]).any()
