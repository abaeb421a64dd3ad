"""Hidden states, logits, loss and every gradient of XLM against transformers' XLMWithLMHeadModel, in float32, with languages, positions
that begin again, and padding.

The error of a leaf is max|a - b| / max|b|.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert.names import present, push
from ptmjax.convert.xlm import names
from ptmjax.objectives.base import Encoding
from ptmjax.objectives.token import Mlm
from ptmjax.types import Key, Keys
from tests.models.bert import VOCAB, wild
from tests.models.xlm import CONFIG, bilingual, tiny

NEAR = 1e-5


def reference(weights: dict[str, np.ndarray], b: dict, more: dict):
    """transformers' output and gradients."""
    model = transformers.XLMWithLMHeadModel(transformers.XLMConfig(**CONFIG | more))
    named = dict(model.named_parameters())
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    t = {name: torch.from_numpy(np.asarray(b[name]).copy()).long() for name in ("tokens", "segments", "languages", "positions", "targets")}
    labels = torch.where(torch.from_numpy(np.asarray(b["weights"]) > 0), t["targets"], -100)
    out = model(t["tokens"], attention_mask=t["segments"], langs=t["languages"], position_ids=t["positions"], labels=labels,
                output_hidden_states=True)
    out.loss.backward()
    return out, {name: p.grad.numpy() for name, p in named.items()}


@pytest.fixture(scope="module", params=[{}, pytest.param({"gelu_activation": False}, marks=pytest.mark.slow)], ids=["gelu", "relu"])
def both(request):
    b, build = bilingual(), tiny(**request.param)
    params, objective = wild(build), Encoding([Mlm(6)])
    keys = Keys(None, Key(jax.random.key(0), b["index"]))

    def loss(params):
        sums, *_ = objective.losses(build.nets(params), b, keys, jnp.int32(0), {})
        return sums["mlm"].mean()

    total, grads = jax.jit(jax.value_and_grad(loss))(params)
    net = build.nets(params)["model"]
    out = net.encode(b, capture=frozenset({"hidden"}))
    taken = lambda tree: push(names(build, "model"), tree, build)
    ours = {"hidden": [np.asarray(h) for h in out.aux[0]["hidden"]], "mlm": net.head("mlm", out.state), "loss": total, "grads": taken(grads),
            "used": {owner for _, owner, *_ in present(names(build, "model"), build)}, "leaves": set(build.leaves)}
    return ours, reference(taken(params), b, request.param), np.asarray(b["segments"]) > 0


def test_the_name_map_uses_every_parameter(both):
    assert both[0]["used"] == both[0]["leaves"]


def test_hidden_states_of_every_layer(both, near):
    ours, (theirs, _), real = both
    assert len(ours["hidden"]) == 3 == len(theirs.hidden_states) - 1
    for a, b in zip(ours["hidden"], theirs.hidden_states[1:]):
        near("hidden states", a[real], b.detach().numpy()[real])


def test_logits_and_loss(both, near):
    ours, (theirs, _), real = both
    logits = theirs.logits.detach().numpy()[real]
    assert logits.std() >= 1
    near("logits", np.asarray(ours["mlm"])[real][:, :VOCAB], logits)
    near("losses", ours["loss"], theirs.loss.item())


def test_every_gradient(both, near):
    ours, (_, grads), _ = both
    assert set(ours["grads"]) == set(grads)
    for name, g in grads.items():
        if name.endswith("k_lin.bias"):  # softmax does not see a constant added to all its scores: the true gradient is 0
            assert max(np.abs(g).max(), np.abs(ours["grads"][name]).max()) <= NEAR
            continue
        assert np.abs(g).max() > 1e-3, name
        near("gradients", ours["grads"][name], g)
