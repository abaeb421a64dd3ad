"""T5 folders of transformers, 1.0 and 1.1: read, written, and both ways without the loss of a bit."""
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from ptmjax.convert import published
from ptmjax.types import UserError
from tests.models.bert import off, wild
from tests.models.t5 import HEADS, HIDDEN, SIZE, VOCAB, WIDTH, batch, t5

NEAR = 1e-5


def logits(model, b):
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if x.ndim == 2}
    with torch.no_grad():
        return model(t["tokens"], attention_mask=t["segments"], decoder_input_ids=t["decoder_tokens"]).logits


def check_logits(build, params, model):
    b = batch()
    net, said = build.nets({name: torch.from_numpy(np.array(x)).numpy() for name, x in params.items()})["model"], np.asarray(b["weights"]) > 0
    ours = net.head("lm", net.decode(b, net.encode(b).state).state)
    assert off(np.asarray(ours)[said][:, :VOCAB], logits(model, b).numpy()[said]) <= NEAR


def ours(v1_1):
    """(networks, parameters with 0 in the padding of the vocabulary, which is not published)."""
    build = t5(v1_1=v1_1, buckets=8, reach=12)
    factor = lambda name: SIZE**-0.5 if name.endswith("query/kernel") else 1
    clean = lambda name, x: x.at[build.leaves[name].real:].set(0) if build.leaves[name].unused else x
    return build, {name: clean(name, factor(name) * x) for name, x in wild(build).items()}


@pytest.mark.parametrize("v1_1", [False, True], ids=["1.0", "1.1"])
def test_our_way_and_back_is_equal_to_the_bit(v1_1, tmp_path):
    build, params = ours(v1_1)
    published.export(build, params, tmp_path / "out")
    opened, report = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    check_logits(build, params, opened.eval())
    again, back, left = published.load(tmp_path / "out")
    assert left == [] and again.leaves == build.leaves and again.ties == build.ties
    assert all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in params)


def test_their_way_and_back_is_equal_to_the_bit(tmp_path):
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=SIZE, d_ff=HIDDEN, num_layers=3, num_decoder_layers=2, num_heads=HEADS, dropout_rate=0.1,
        attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.3)
    model.save_pretrained(tmp_path / "theirs")
    build, params, left = published.load(tmp_path / "theirs")
    assert left == []
    check_logits(build, params, model)
    published.export(build, params, tmp_path / "again")
    a, b = (safetensors.numpy.load_file(tmp_path / f / "model.safetensors") for f in ("theirs", "again"))
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_a_scaled_untied_head_is_refused(tmp_path):
    build, params = ours(False)
    loose = published.t5.Build(build.factories, published.t5.SHARED)
    with pytest.raises(UserError, match="model/heads/lm/scale is 0.204.*, there it is nothing"):
        published.export(loose, wild(loose), tmp_path / "out")
