"""XLM folders of transformers: read, written, and both ways without the loss of a bit."""
import json

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from ptmjax.cli import session
from ptmjax.convert import published, xlm
from ptmjax.models.heads import Classifier
from ptmjax.types import UserError
from tests.models.bert import VOCAB, bert, off, part, wild
from tests.models.xlm import CONFIG, bilingual, tiny


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(model, its folder)."""
    torch.manual_seed(0)
    model = transformers.XLMWithLMHeadModel(transformers.XLMConfig(**CONFIG)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.3)
    folder = tmp_path_factory.mktemp("theirs") / "xlm"
    model.save_pretrained(folder)
    return model, folder


def logits(model, b):
    t = {name: torch.from_numpy(np.asarray(b[name]).copy()).long() for name in ("tokens", "segments", "languages", "positions")}
    with torch.no_grad():
        return model(t["tokens"], attention_mask=t["segments"], langs=t["languages"], position_ids=t["positions"]).logits.numpy()


def check_logits(build, params, model):
    b = bilingual()
    real, net = np.asarray(b["segments"]) > 0, build.nets(jax.tree.map(jax.numpy.asarray, params))["model"]
    assert off(np.asarray(net.head("mlm", net.encode(b).state))[real][:, :VOCAB], logits(model, b)[real]) <= 1e-5


def test_their_way_and_back_is_equal_to_the_bit(theirs, tmp_path):
    model, folder = theirs
    build, params, left = published.load(folder)
    assert left == []
    check_logits(build, params, model)
    published.export(build, params, tmp_path / "again")
    a, b = (safetensors.numpy.load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "again"))
    assert all(before[key] == after[key] for key in after if key in before)


def test_our_way_and_back_is_equal_to_the_bit(tmp_path):
    build = tiny()
    params = {name: x.at[build.leaves[name].sizes[0]:].set(0) if build.leaves[name].unused else x for name, x in wild(build).items()}
    published.export(build, params, tmp_path / "out")
    opened, report = transformers.XLMWithLMHeadModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    check_logits(build, params, opened.eval())
    again, back, left = published.load(tmp_path / "out")
    assert left == [] and again.leaves == build.leaves
    assert all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in params)


def test_older_files_and_bare_encoders(theirs, tmp_path):
    _, folder = theirs
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (tmp_path / "old").mkdir()
    safetensors.numpy.save_file({name.removeprefix("transformer."): x for name, x in tensors.items() if name.startswith("transformer.")},
                                tmp_path / "old" / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["n_words"] = config.pop("vocab_size")
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    build, params, left = published.load(tmp_path / "old")
    assert left == [] and not any("heads" in name for name in params)
    whole = published.load(folder)[1]
    assert all(params[name].tobytes() == whole[name].tobytes() for name in params)
    assert "model/embedder/parts/languages/table" not in tiny(use_lang_emb=False).leaves


def test_the_shipped_file_is_of_the_layout():
    """xlm_mlm_tlm is what transformers calls XLM, at its size; the demo and a BERT are not."""
    found = session.experiment(["xlm_mlm_tlm.gin"], [])
    told = published.described(xlm, found.build(found.stages[0]), "model")
    assert told["n_langs"] == 15 and (told["emb_dim"], told["n_layers"], told["n_heads"]) == (1024, 12, 8)
    assert told["vocab_size"] == 95000 and told["architectures"] == ["XLMWithLMHeadModel"] and told["dropout"] == 0.1
    demo = session.experiment(["xlm_demo.gin"], [])
    with pytest.raises(UserError, match="its embeddings must be tokens, learned positions and languages"):
        published.described(xlm, demo.build(demo.stages[0]), "model")
    assert not xlm.mine(published.shapes(bert()))


@pytest.mark.parametrize("field, value, said", [("asm", True, "asm true; it must be false"), ("sinusoidal_embeddings", True, "sinusoidal_embeddings"),
                                                ("causal", True, "causal"), ("n_langs", 0, "n_langs 0; it must be a whole number")])
def test_what_is_not_read(field, value, said):
    with pytest.raises(UserError, match=said):
        xlm.fields(CONFIG | {field: value}, "here")


def test_what_has_no_place(tmp_path):
    build = tiny()
    factory = build.factories["model"]
    other = type(build)({"model": part(factory.func, *factory.args[:3], {"nsp": part(Classifier, 2, 24)})}, {})
    with pytest.raises(UserError, match="its heads are nsp; known is mlm"):
        published.export(other, wild(other), tmp_path / "no")
    assert not (tmp_path / "no").exists()
