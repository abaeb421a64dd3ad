"""RoBERTa folders of transformers: read, written, and both ways without the loss of a bit; XLM-R's are read."""
import json

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from ptmjax.tasks.corpora import EN_PD_4096, EN_PD_BYTEBPE_4096

from ptmjax.convert import published, roberta
from ptmjax.types import UserError
from tests.convert.test_bert import spoil
from tests.models.bert import bert, off, wild
from tests.models.roberta import EPS, LENGTH, PAD, VOCAB, batch
from tests.models.roberta import roberta as tiny

NEAR = 1e-5
SIZES = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=LENGTH + 2,
             type_vocab_size=1, layer_norm_eps=EPS)
KINDS = {"roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM), "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForMaskedLM)}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """kind -> (model, its folder)."""
    torch.manual_seed(0)
    made = {}
    for kind, (config, model) in KINDS.items():
        one, folder = model(config(**SIZES, attn_implementation="eager")).eval(), tmp_path_factory.mktemp("theirs") / kind
        with torch.no_grad():
            for p in one.parameters():
                p.copy_(torch.randn(p.shape) * 0.3)
        one.save_pretrained(folder)
        made[kind] = one, folder
    return made


def logits(model, b):
    with torch.no_grad():
        return model(*(torch.from_numpy(np.asarray(b[name]).copy()).long() for name in ("tokens", "segments"))).logits.numpy()


def check_logits(build, params, model):
    b = batch()
    real, net = np.asarray(b["segments"]) > 0, build.nets(jax.tree.map(jax.numpy.asarray, params))["model"]
    assert off(np.asarray(net.head("mlm", net.encode(b).state))[real][:, :VOCAB], logits(model, b)[real]) <= NEAR


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_transformers_gives_its_logits(theirs, kind):
    model, folder = theirs[kind]
    build, params, left = published.load(folder)
    assert left == [] and build.leaves == tiny().leaves
    check_logits(build, params, model)


def test_their_way_and_back_is_equal_to_the_bit(theirs, tmp_path):
    model, folder = theirs["roberta"]
    build, params, _ = published.load(folder)
    published.export(build, params, tmp_path / "again")
    a, b = (safetensors.numpy.load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() and a[name].dtype == b[name].dtype for name in a)
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
    assert after["pad_token_id"] == PAD and all(before[key] == after[key] for key in after)


def test_our_model_and_its_vocabulary_open_in_transformers(tmp_path):
    """AutoTokenizer and AutoModelForMaskedLM; positions are counted from the pads of its own texts."""
    build = tiny(4096)
    params, v = wild(build), EN_PD_BYTEBPE_4096
    params = {name: x.at[build.leaves[name].sizes[0]:].set(0) if build.leaves[name].unused else x for name, x in params.items()}
    published.export(build, params, tmp_path / "out", v)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert isinstance(model, transformers.RobertaForMaskedLM) and not report["missing_keys"] and not report["unexpected_keys"]
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (1, 0, 2)
    t = tokenizer(["The whale <mask> under the ship.", "A dog."], padding=True, return_tensors="pt")
    assert t.input_ids[1].tolist()[-1] == v.pad == 1 and t.input_ids[0].tolist() == [v.cls, *v.encode("The whale"), v.mask, *v.encode(" under the ship."), v.sep]
    ours = {"tokens": jax.numpy.asarray(t.input_ids.numpy(), int), "segments": jax.numpy.asarray(t.attention_mask.numpy(), int)}
    ours["types"] = 0 * ours["tokens"]
    net, real = build.nets(params)["model"], t.attention_mask.numpy() > 0
    with torch.no_grad():
        assert off(np.asarray(net.head("mlm", net.encode(ours).state))[real], model.eval()(**t).logits.numpy()[real]) <= NEAR
    again, back, left = published.load(tmp_path / "out")
    assert left == [] and again.leaves == build.leaves and all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in params)


def test_a_vocabulary_whose_pad_is_another_is_refused(tmp_path):
    """transformers counts positions by pad: other positions would come out."""
    build = tiny(4096)
    with pytest.raises(UserError, match="its pad_token_id is 1, behind which positions begin, the vocabulary's 0"):
        published.export(build, wild(build), tmp_path / "out", EN_PD_4096)
    assert not (tmp_path / "out").exists()


def test_bert_and_roberta_are_told_apart(theirs, tmp_path):
    _, folder = theirs["roberta"]
    published.export(bert(types=1), wild(bert(types=1)), tmp_path / "bert")
    assert json.loads((tmp_path / "bert" / "config.json").read_text())["model_type"] == "bert"
    said = []
    with pytest.raises(UserError, match=r"\(max_position_embeddings: 39 vs 41, pad_token_id: 1 vs 3, theirs vs ours\)"):
        published.initial(folder, tiny(offset=4), said.append)
    with pytest.raises(UserError, match="bert.embeddings.position_embeddings.weight of .* is .37, 24., model/embedder/parts/positions/table is .39, 24."):
        published.initial(tmp_path / "bert", tiny(), said.append)
    assert "taken by name and shape alone" in said[0] and "model/embedder/parts/positions/offset is 2, there it is 0" in said[0]


def test_bare_encoders_and_faults(theirs, tmp_path):
    _, folder = theirs["roberta"]
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    bare = {name.removeprefix("roberta."): x for name, x in tensors.items() if not name.startswith("lm_head.")}
    there = spoil(folder, tmp_path / "bare", drop=list(tensors), change=bare | {"pooler.dense.bias": np.zeros(24, np.float32)})
    build, params, left = published.load(there)
    assert left == ["roberta.pooler.dense.bias"] and "model/heads/mlm/bias" not in params and build.leaves.keys() == params.keys()
    for change, words in (({"pad_token_id": -1}, "pad_token_id -1; it must be a whole number of at least 0"), ({"pad_token_id": 38}, "none behind those up to its pad_token_id 38"),
                          ({"model_type": "gpt2"}, "of a 'gpt2' model; known are albert, bert, electra, ernie, roberta, t5, xlm, xlm-roberta")):
        with pytest.raises(UserError, match=words):
            published.load(spoil(folder, tmp_path / str(len(list(tmp_path.iterdir()))), change))
    assert roberta.fields(SIZES, "x")["pad_token_id"] == 1
