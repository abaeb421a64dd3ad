"""T5 folders of transformers, 1.0 and 1.1: read, written, and both ways without the loss of a bit."""
import json

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
    clean = lambda name, x: x.at[build.leaves[name].sizes[0]:].set(0) if build.leaves[name].unused else x
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


class Symbols:
    """A vocabulary of which only the ids matter."""

    def __init__(self, **symbols):
        self.symbols = symbols

    def save(self, folder, before, after, inputs):
        assert (before, after) == ((), ("eos",))


def test_generate_begins_with_our_pad_and_stops_at_our_eos(tmp_path):
    """The end symbol is what the model writes third: with transformers' own default of 1 it would go on to the limit."""
    build, params = ours(True)
    tokens, pad = torch.tensor([[9, 8, 7, 6, 5]]), 7
    write = lambda folder: transformers.T5ForConditionalGeneration.from_pretrained(folder).generate(tokens, max_new_tokens=12, do_sample=False)[0].tolist()
    published.export(build, params, tmp_path / "long", Symbols(pad=pad, eos=130))
    long = write(tmp_path / "long")
    assert len(long) == 13 and long[0] == pad
    end = next(i for i in range(2, 13) if long[i] not in long[:i])
    published.export(build, params, tmp_path / "short", Symbols(pad=pad, eos=long[end]))
    assert write(tmp_path / "short") == long[: end + 1]
    config = json.loads((tmp_path / "short/config.json").read_text())
    assert (config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]) == (pad, pad, long[end])


def test_version_1_1_as_transformers_saves_it_again(tmp_path):
    """It tells the head of its own by scale_decoder_outputs, and says that it is tied."""
    build, params = ours(True)
    published.export(build, params, tmp_path / "out")
    transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
    again, back, left = published.load(tmp_path / "again")
    assert left == [] and again.ties == build.ties
    assert all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in params)


def test_begin_from_another_config_is_refused(tmp_path):
    """Shapes are equal, what is computed is not."""
    build, params = ours(False)
    published.export(build, params, tmp_path / "out")
    same = json.loads((tmp_path / "out/config.json").read_text())
    for change, words in (({"relative_attention_max_distance": 20}, "relative_attention_max_distance: 20 vs 12"),
                          ({"layer_norm_epsilon": 1e-5, "feed_forward_proj": "gelu"}, "layer_norm_epsilon: 1e-05 vs 1e-06, feed_forward_proj: gelu vs relu"),
                          ({"tie_word_embeddings": False}, "tie_word_embeddings: False vs True")):
        (tmp_path / "out/config.json").write_text(json.dumps(same | change))
        with pytest.raises(UserError, match=f"out/config.json is of another network than this one .{words}, theirs vs ours.: choose its settings"):
            published.initial(tmp_path / "out", build, print)
    (tmp_path / "out/config.json").write_text(json.dumps(same | {"dropout_rate": 0.3, "transformers_version": "1", "architectures": []}))
    said = []
    assert published.initial(tmp_path / "out", build, said.append).keys() == params.keys() and len(said) == 1
