"""BERT folders of transformers: read, written, and both ways without the loss of a bit."""
import json

import jax
import numpy as np
import optax
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import transformers

from ptmjax.convert import published
from ptmjax.nn import masks
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training.build import Build
from ptmjax.training.state import Plan
from ptmjax.types import UserError
from tests.models.bert import TIES, VOCAB, batch, bert, network, off, pretraining, wild
from tests.models.electra import electra

NEAR = 1e-5
SIZES = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40, max_position_embeddings=37,
             type_vocab_size=3)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(model, its folder)."""
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES, attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.3)
    folder = tmp_path_factory.mktemp("theirs") / "bert"
    model.save_pretrained(folder)
    return model, folder


def logits(model, b):
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if name in ("tokens", "types", "segments")}
    with torch.no_grad():
        return model(t["tokens"], attention_mask=t["segments"], token_type_ids=t["types"])


def check_logits(build, params, model):
    b = batch()
    real, net = np.asarray(b["segments"]) > 0, build.nets(jax.tree.map(jax.numpy.asarray, params))["model"]
    state, out = net.encode(b).state, logits(model, b)
    assert off(np.asarray(net.head("mlm", state))[real][:, :VOCAB], out.prediction_logits.numpy()[real]) <= NEAR
    assert off(net.head("nsp", state), out.seq_relationship_logits.numpy()) <= NEAR


def test_a_folder_of_transformers_gives_its_logits(theirs):
    model, folder = theirs
    build, params, left = published.load(folder)
    assert left == []
    check_logits(build, params, model)


def test_their_way_and_back_is_equal_to_the_bit(theirs, tmp_path):
    model, folder = theirs
    build, params, _ = published.load(folder)
    published.export(build, params, tmp_path / "again")
    a, b = (safetensors.numpy.load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() and a[name].dtype == b[name].dtype for name in a)
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
    assert all(before[key] == after[key] for key in after)
    opened = transformers.BertForPreTraining.from_pretrained(tmp_path / "again", attn_implementation="eager").eval()
    assert torch.equal(logits(opened, batch()).prediction_logits, logits(model, batch()).prediction_logits)


def test_our_way_and_back_is_equal_to_the_bit(tmp_path):
    build = bert()
    params = wild(build)
    # Of a vocabulary the padding is not published: it comes back as 0
    params = {name: x.at[build.leaves[name].sizes[0]:].set(0) if build.leaves[name].unused else x for name, x in params.items()}
    published.export(build, params, tmp_path / "out")
    opened, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    check_logits(build, params, opened.eval())
    again, back, left = published.load(tmp_path / "out")
    assert left == [] and again.leaves == build.leaves
    assert all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in params)


def test_older_names_bare_encoders_and_several_files(theirs, tmp_path):
    model, folder = theirs
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    old = {name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
           for name, x in tensors.items() if not name.startswith("cls.")}
    old["embeddings.position_ids"] = np.arange(37)[None]
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    names = sorted(old)
    for i, part in enumerate((names[::2], names[1::2])):
        safetensors.numpy.save_file({name: old[name] for name in part}, tmp_path / "old" / f"part{i}.safetensors")
    where = {name: f"part{i % 2}.safetensors" for i, name in enumerate(names)}
    (tmp_path / "old" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    build, params, left = published.load(tmp_path / "old")
    assert left == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    whole = published.load(folder)[1]
    assert all(params[name].tobytes() == whole[name].tobytes() for name in params) and "model/heads/mlm/bias" not in params


def test_begin_takes_what_there_is_and_says_what_lacks(theirs, tmp_path):
    _, folder = theirs
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "config.json").write_text((folder / "config.json").read_text())
    safetensors.numpy.save_file({n: x for n, x in tensors.items() if "predictions" not in n}, tmp_path / "part" / "model.safetensors")
    build, said = Build({"model": network()}, TIES), []
    plan = Plan(build, pretraining(), optax.sgd(0.1), make_mesh("model=2,fsdp=2,data=2"), 8, 0, 1)
    found = published.initial(tmp_path / "part", build, said.append)
    first, state = plan.create(), published.born(found, plan)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, first)
    assert len(said) == 2 and "25 of 30 parameters are begun with" in said[0] and "model/heads/mlm/bias, model/heads/mlm/norm/bias" in said[1]
    whole = published.load(folder)[1]
    for name, x in state.params.items():
        assert np.array_equal(x, first.params[name] if name.startswith("model/heads/mlm/") else whole[name]), name


def test_begin_from_another_config_is_refused_and_another_layout_is_told(theirs, tmp_path):
    _, folder = theirs
    build, said = Build({"model": network()}, TIES), []
    config = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.3, "initializer_range": 1.0}
    with pytest.raises(UserError, match=r"\(hidden_act: gelu_new vs gelu, layer_norm_eps: 1e-05 vs 1e-12, theirs vs ours\)"):
        published.initial(spoil(folder, tmp_path / "other", config), build, said.append)
    assert said == []
    causal = Build({"model": network(see=masks.causal)}, TIES)
    assert published.initial(folder, causal, said.append).keys() == causal.leaves.keys()
    assert len(said) == 2 and "taken by name and shape alone" in said[0] and "model/context/see is ptmjax.nn.masks.causal" in said[0]
    with pytest.raises(UserError, match="has no parameter of this network"):
        published.initial(folder, electra(), said.append)


def spoil(folder, target, config=None, drop=(), change=None):
    target.mkdir()
    about = json.loads((folder / "config.json").read_text()) | (config or {})
    (target / "config.json").write_text(json.dumps({k: v for k, v in about.items() if v is not None}))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors = {n: x for n, x in tensors.items() if n not in drop} | (change or {})
    safetensors.numpy.save_file(tensors, target / "model.safetensors")
    return target


def test_faults_of_a_folder_are_one_line(theirs, tmp_path):
    _, folder = theirs
    spoiled = iter(range(99))
    bad = lambda **how: published.load(spoil(folder, tmp_path / str(next(spoiled)), **how))
    with pytest.raises(UserError, match=r"config.json cannot be read .*: name the folder"):
        published.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="of a 'gpt2' model; known are albert, bert"):
        bad(config={"model_type": "gpt2"})
    with pytest.raises(UserError, match="has no 'hidden_size'"):
        bad(config={"hidden_size": None})
    with pytest.raises(UserError, match="hidden_act \"mish\"; it must be one of"):
        bad(config={"hidden_act": "mish"})
    for change, words in (({"hidden_size": "24"}, 'hidden_size "24"; it must be a whole number'), ({"hidden_size": True}, "hidden_size true"),
                          ({"num_attention_heads": 0}, "num_attention_heads 0"), ({"layer_norm_eps": "x"}, 'layer_norm_eps "x"; it must be a number'),
                          ({"layer_norm_eps": float("nan")}, "layer_norm_eps NaN"), ({"hidden_act": ["gelu"]}, "hidden_act .\"gelu\".; it must be one of"),
                          ({"position_embedding_type": "relative_key"}, "position_embedding_type \"relative_key\"; it must be \"absolute\""),
                          ({"tie_word_embeddings": 1}, "tie_word_embeddings 1; it must be true or false")):
        with pytest.raises(UserError, match=rf"/config.json has {words}"):
            bad(config=change)
    for bits in (np.int8, np.uint8):
        with pytest.raises(UserError, match="pooler.dense.bias of .* is of u?int8, not of floats"):
            bad(change={"bert.pooler.dense.bias": np.zeros(24, bits)})
    with pytest.raises(UserError, match="lacks the tensors of model/stack/groups/0/mlp/wi/kernel"):
        bad(drop=["bert.encoder.layer.1.intermediate.dense.weight"])
    with pytest.raises(UserError, match=r"has more layers than the 2"):
        bad(config={"num_hidden_layers": 2})
    with pytest.raises(UserError, match=r"is \[131, 24\], model/embedder/parts/tokens/table is \[130, 24\]"):
        bad(config={"vocab_size": 130})
    with pytest.raises(UserError, match="decoder.weight is not equal to"):
        bad(change={"cls.predictions.decoder.weight": np.zeros((VOCAB, 24), np.float32)})
    (tmp_path / "0" / "model.safetensors").write_bytes(b"no")
    (tmp_path / "0" / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        published.load(tmp_path / "0")
    (tmp_path / "0" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has neither model.safetensors"):
        published.load(tmp_path / "0")


def test_null_and_eight_bits_are_one_line(theirs, tmp_path):
    _, folder = theirs
    there = spoil(folder, tmp_path / "null")
    about = json.loads((there / "config.json").read_text())
    (there / "config.json").write_text(json.dumps(about | {"layer_norm_eps": None}))
    with pytest.raises(UserError, match="layer_norm_eps null; it must be a number of at least 0"):
        published.load(there)
    (there / "config.json").write_text(json.dumps(about))
    safetensors.torch.save_file({"bert.pooler.dense.bias": torch.zeros(24).to(torch.float8_e4m3fn)}, there / "model.safetensors")
    with pytest.raises(UserError, match="has tensors of F8_E4M3, which cannot be read: save the model in float32"):
        published.load(there)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 1}}, {"weight_map": {"a": None}},
                                   {"weight_map": "model.safetensors"}])
def test_an_index_that_is_none_is_one_line(theirs, tmp_path, index):
    there = spoil(theirs[1], tmp_path / "indexed")
    (there / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="index.json has no weight_map from tensors to files: fetch it again"):
        published.load(there)


def test_a_folder_that_exists_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="exists: name a new folder"):
        published.export(bert(), wild(bert()), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
