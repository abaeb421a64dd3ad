"""Hidden states, logits, losses and every gradient of ERNIE 1.0 (relu, no task types) against transformers' ErnieForPreTraining."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert import ernie
from ptmjax.convert.names import push
from ptmjax.types import Key, Keys
from tests.models.bert import LENGTH, TYPES, VOCAB, batch, pretraining, wild

SIZES = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=LENGTH,
             type_vocab_size=TYPES, hidden_act="relu", hidden_dropout_prob=0, attention_probs_dropout_prob=0)


@pytest.fixture(scope="module")
def both():
    """(ours, theirs), each: hidden, mlm, nsp, losses, grads; and which places are real."""
    config = transformers.ErnieConfig(**SIZES, attn_implementation="eager")
    assert config.layer_norm_eps == 1e-12 and not config.use_task_id
    model = transformers.ErnieForPreTraining(config)
    named = dict(model.named_parameters())
    build = ernie.build(ernie.fields(config.to_dict(), "config.json"), named)
    params, objective, b = wild(build), pretraining(), batch()
    taken = lambda tree: push(ernie.names(build, "model"), tree, build)
    weights = taken(params)
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    t = {name: torch.from_numpy(np.asarray(b[name]).copy()).long() for name in ("tokens", "types", "segments", "targets", "label")}
    labels = torch.where(torch.from_numpy(np.asarray(b["weights"]) > 0), t["targets"], -100)
    out = model(t["tokens"], attention_mask=t["segments"], token_type_ids=t["types"], labels=labels, next_sentence_label=t["label"],
                output_hidden_states=True)
    out.loss.backward()
    theirs = {"hidden": [h.detach().numpy() for h in out.hidden_states[1:]], "mlm": out.prediction_logits.detach().numpy(),
              "nsp": out.seq_relationship_logits.detach().numpy(), "loss": out.loss.item(), "grads": {name: p.grad.numpy() for name, p in named.items()}}

    def loss(params):
        sums, _, _ = objective.losses(build.nets(params), b, Keys(None, Key(jax.random.key(0), b["index"])), jnp.int32(0), {})
        return objective.total({name: s.mean() for name, s in sums.items()})

    total, grads = jax.jit(jax.value_and_grad(loss))(params)
    net = build.nets(params)["model"]
    found = net.encode(b, capture=frozenset({"hidden"}))
    ours = {"hidden": [np.asarray(h) for h in found.aux[0]["hidden"]], "mlm": np.asarray(net.head("mlm", found.state))[..., :VOCAB],
            "nsp": net.head("nsp", found.state), "loss": total, "grads": taken(grads)}
    return ours, theirs, np.asarray(b["segments"]) > 0


def test_hidden_states_and_logits(both, near):
    ours, theirs, real = both
    assert len(ours["hidden"]) == len(theirs["hidden"]) == 2 and theirs["mlm"][real].std() >= 1
    for a, b in zip(ours["hidden"], theirs["hidden"]):
        near("hidden states", a[real], b[real])
    near("logits", ours["mlm"][real], theirs["mlm"][real])
    near("logits", ours["nsp"], theirs["nsp"])


def test_losses_and_every_gradient(both, near):
    ours, theirs, _ = both
    near("losses", ours["loss"], theirs["loss"])
    assert set(ours["grads"]) == set(theirs["grads"])
    for name, g in theirs["grads"].items():
        if not name.endswith("self.key.bias"):  # whose true gradient is 0
            assert np.abs(g).max() > 1e-3, name
            near("gradients", ours["grads"][name], g)
