"""Hidden states, logits, losses and every gradient of T5 1.0 and 1.1 against transformers' T5ForConditionalGeneration, in float32.

The error of a leaf is max|a - b| / max|b|.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert.names import present, push
from ptmjax.convert.t5 import names
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.types import Key, Keys
from tests.models.bert import wild
from tests.models.t5 import HEADS, HIDDEN, SIZE, VOCAB, WIDTH, batch, t5

Z = 0.03  # large enough to show in every gradient
LAYERS = (3, 2)


def taken(params: dict, build) -> dict[str, np.ndarray]:
    """Our parameters or gradients under transformers' names and in its shapes, without the padding of the vocabulary."""
    return push(names(build, "model"), params, build)


def reference(weights: dict[str, np.ndarray], b: dict, v1_1: bool):
    """transformers' hidden states, logits, losses and gradients."""
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=SIZE, d_ff=HIDDEN, num_layers=LAYERS[0], num_decoder_layers=LAYERS[1], num_heads=HEADS,
        relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0, tie_word_embeddings=not v1_1,
        feed_forward_proj="gated-gelu" if v1_1 else "relu", attn_implementation="eager", decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    if v1_1:  # transformers 5 ties the head of every T5: 1.1's is its own
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    named = dict(model.named_parameters())
    assert set(named) == set(weights)
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.from_numpy(weights[name].copy()))
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if x.ndim == 2}
    labels = torch.where(t["weights"] > 0, t["targets"], -100)
    out = model(t["tokens"], attention_mask=t["segments"], decoder_input_ids=t["decoder_tokens"], labels=labels, output_hidden_states=True)
    scored = t["weights"] > 0
    z = torch.logsumexp(out.logits[scored], -1).square().mean()
    (out.loss + Z * z).backward()
    return out, {"seq2seq": out.loss, "z_loss": z}, {name: p.grad.numpy() for name, p in named.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["1.0", "1.1"])
def both(request):
    v1_1, b = request.param, batch()
    build, objective = t5(LAYERS, v1_1=v1_1), Seq2Seq(Z)
    factor = lambda name: SIZE**-0.5 if name.endswith("query/kernel") else 2 if name.endswith("tokens/table") else 1
    params = {name: factor(name) * x for name, x in wild(build).items()}
    keys = Keys(None, Key(jax.random.key(0), b["index"]))

    def loss(params):
        sums, _, _ = objective.losses({"model": (net := build.nets(params)["model"])}, b, keys, jnp.int32(0), {})
        encoded = net.encode(b, capture=frozenset({"hidden"}))
        decoded = net.decode(b, encoded.state, capture=frozenset({"hidden"}))
        more = {"encoder": [*encoded.aux[0]["hidden"][:-1], encoded.state], "decoder": [*decoded.aux[0]["hidden"][:-1], decoded.state],
                "logits": net.head("lm", decoded.state)}
        return objective.total({name: s.mean() for name, s in sums.items()}), (sums, more)

    (total, (sums, more)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    ours = more | {"losses": {name: s.mean() for name, s in sums.items()}, "total": total, "raw": grads, "grads": taken(grads, build),
                   "used": {owner for _, owner, *_ in present(names(build, "model"), build)}, "leaves": set(build.leaves)}
    return ours, reference(taken(params, build), b, v1_1), b


def test_the_name_map_uses_every_parameter(both):
    assert both[0]["used"] == both[0]["leaves"]


def test_hidden_states_of_every_layer(both, near):
    """transformers' last one is normed: so is the state that ours ends in."""
    ours, (theirs, _, _), b = both
    for side, there, segments in (("encoder", theirs.encoder_hidden_states, b["segments"]), ("decoder", theirs.decoder_hidden_states, b["decoder_segments"])):
        real = np.asarray(segments) > 0
        assert len(ours[side]) == len(there) - 1 and not real.all()
        for x, y in zip(ours[side], there[1:]):
            near("hidden states", np.asarray(x)[real], y.detach().numpy()[real])


def test_logits(both, near):
    ours, (theirs, _, _), b = both
    real, logits = np.asarray(b["decoder_segments"]) > 0, theirs.logits.detach().numpy()
    assert logits[real].std() >= 1  # small logits would hide a bug
    near("logits", np.asarray(ours["logits"])[real][:, :VOCAB], logits[real])
    assert (np.asarray(ours["logits"])[..., VOCAB:] <= -1e9).all() and ours["logits"].shape[-1] == 256


def test_losses(both, near):
    ours, (theirs, losses, _), _ = both
    assert set(ours["losses"]) == set(losses)
    for name, x in losses.items():
        near("losses", ours["losses"][name], x.item())
    near("losses", ours["total"], losses["seq2seq"].item() + Z * losses["z_loss"].item())


def test_every_gradient(both, near):
    ours, (_, _, grads), _ = both
    assert set(ours["grads"]) == set(grads)
    for name, g in grads.items():
        assert np.abs(g).max() > 1e-3, name
        near("gradients", ours["grads"][name], g)


def test_the_padding_of_the_vocabulary_gets_no_gradient(both):
    tables = [path for path in both[0]["leaves"] if path.endswith(("tokens/table", "lm/table"))]
    assert tables
    for path in tables:
        assert both[0]["raw"][path].shape[0] == 256 and not np.asarray(both[0]["raw"][path][VOCAB:]).any()
