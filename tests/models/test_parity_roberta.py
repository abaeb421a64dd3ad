"""Hidden states, logits, loss and every gradient of RoBERTa and XLM-R against transformers', in float32; padding has no effect.

The error of a leaf is max|a - b| / max|b|.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert.names import present, push
from ptmjax.convert.roberta import copies, names
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training.optimizer import AdamW
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step
from ptmjax.types import Key, Keys
from tests.models.bert import wild
from tests.models.roberta import EPS, LENGTH, PAD, VOCAB, batch, longer, roberta

NEAR = 1e-5
LAYERS = 2
OBJECTIVE = Encoding([Mlm(6)])
KINDS = {"roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM), "xlm-r": (transformers.XLMRobertaConfig, transformers.XLMRobertaForMaskedLM)}


def reference(kind: str, weights: dict[str, np.ndarray], b: dict):
    """transformers' output and gradients; it makes the positions itself, from what is not pad."""
    config, model = KINDS[kind]
    model = model(config(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=LAYERS, num_attention_heads=3, intermediate_size=40, max_position_embeddings=LENGTH + 2,
        type_vocab_size=1, layer_norm_eps=EPS, pad_token_id=PAD, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager"))
    named = {name: p for name, p in model.named_parameters(remove_duplicate=False) if name not in copies({})}
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    t = {name: torch.from_numpy(np.asarray(b[name]).copy()).long() for name in ("tokens", "segments", "targets")}
    labels = torch.where(torch.from_numpy(np.asarray(b["weights"]) > 0), t["targets"], -100)
    out = model(t["tokens"], attention_mask=t["segments"], labels=labels, output_hidden_states=True)
    out.loss.backward()
    return out, {name: p.grad.numpy() for name, p in named.items()}


@pytest.fixture(scope="module")
def ours():
    b, build = batch(), roberta()
    params, keys = wild(build), Keys(None, Key(jax.random.key(0), b["index"]))

    def loss(params):
        return OBJECTIVE.losses(build.nets(params), b, keys, jnp.int32(0), {})[0]["mlm"].mean()

    total, grads = jax.jit(jax.value_and_grad(loss))(params)
    net = build.nets(params)["model"]
    out = net.encode(b, capture=frozenset({"hidden"}))
    assert {owner for _, owner, *_ in present(names(build, "model"), build)} == set(build.leaves)
    return {"hidden": [np.asarray(h) for h in out.aux[0]["hidden"]], "logits": np.asarray(net.head("mlm", out.state))[..., :VOCAB], "loss": total,
            "grads": push(names(build, "model"), grads, build), "weights": push(names(build, "model"), params, build), "batch": b}


@pytest.mark.parametrize("kind", KINDS)
def test_all_is_transformers(kind, ours, near):
    theirs, grads = reference(kind, ours["weights"], ours["batch"])
    real = np.asarray(ours["batch"]["segments"]) > 0
    assert 0.5 < real.mean() < 1 and len(ours["hidden"]) == LAYERS == len(theirs.hidden_states) - 1
    for a, b in zip(ours["hidden"], theirs.hidden_states[1:]):
        near("hidden states", a[real], b.detach().numpy()[real])
    logits = theirs.logits.detach().numpy()[real]
    assert logits.std() >= 1  # small ones would hide a bug
    near("logits", ours["logits"][real], logits)
    near("losses", ours["loss"], theirs.loss.item())
    assert set(ours["grads"]) == set(grads)
    for name, g in grads.items():
        if name.endswith("self.key.bias"):  # softmax does not see a constant added to all its scores: the true gradient is 0
            assert max(np.abs(g).max(), np.abs(ours["grads"][name]).max()) <= NEAR
        else:
            assert np.abs(g).max() > 1e-3, name
            near("gradients", ours["grads"][name], g)


def test_the_rows_of_positions_that_nothing_reads_get_no_gradient(ours):
    """Row 0, those behind the longest row, and pad's, which padding reads and nothing sees."""
    grad, most = ours["grads"]["roberta.embeddings.position_embeddings.weight"], int(ours["batch"]["segments"].sum(1).max())
    assert grad.shape[0] == LENGTH + 2 and np.flatnonzero(np.abs(grad).sum(1)).tolist() == list(range(2, most + 2))


def trained(build, b, steps: int) -> tuple[list[float], dict]:
    """Losses of some steps on one batch, and the parameters then."""
    plan = Plan(build, OBJECTIVE, AdamW(lambda step: 1e-3).transform(build.leaves), make_mesh("", jax.devices()[:1]), len(b["index"]), 0, 1)
    step, state, losses = make_step(plan), plan.create(), []
    with jax.set_mesh(plan.mesh):
        for _ in range(steps):
            state, metrics = step(state, b)
            losses.append(float(metrics["loss"]))
    return losses, state.params


def test_padding_has_no_effect_on_training():
    b = batch()
    (short, one), (long, two) = (trained(roberta(layers=1), x, 4) for x in (b, longer(b, 13)))
    assert short[-1] < short[0] - 0.01
    np.testing.assert_allclose(long, short, rtol=1e-5)
    for name, x in one.items():
        np.testing.assert_allclose(two[name], x, atol=2e-5, err_msg=name)
