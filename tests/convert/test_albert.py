"""ALBERT folders of transformers: read, written, and both ways without the loss of a bit."""
import json

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from ptmjax.convert import published
from ptmjax.types import UserError
from tests.models.albert import albert
from tests.models.bert import VOCAB, batch, bert, off, wild

NEAR = 1e-5


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """(build of two groups, parameters, their folder); of a vocabulary the padding is not published: it comes back as 0."""
    build = albert((2, 2))
    params = {name: x.at[build.leaves[name].sizes[0]:].set(0) if build.leaves[name].unused else x for name, x in wild(build).items()}
    folder = tmp_path_factory.mktemp("ours") / "albert"
    published.export(build, params, folder)
    return build, params, folder


def scores(net, b):
    state = net.encode(b).state
    return net.head("mlm", state), net.head("sop", state)


def test_our_way_and_back_is_equal_to_the_bit(ours, tmp_path):
    build, params, folder = ours
    opened, report = transformers.AlbertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    b = batch()
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if name in ("tokens", "types", "segments")}
    with torch.no_grad():
        out = opened.eval()(t["tokens"], attention_mask=t["segments"], token_type_ids=t["types"])
    real, mlm, sop = np.asarray(b["segments"]) > 0, *jax.jit(lambda params: scores(build.nets(params)["model"], b))(params)
    assert off(np.asarray(mlm)[real][:, :VOCAB], out.prediction_logits.numpy()[real]) <= NEAR
    assert off(sop, out.sop_logits.numpy()) <= NEAR
    again, back, left = published.load(folder)
    assert left == [] and again.leaves == build.leaves
    assert all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in params)
    opened.save_pretrained(tmp_path / "theirs")
    published.export(*published.load(tmp_path / "theirs")[:2], tmp_path / "again")
    a, c = (safetensors.numpy.load_file(tmp_path / f / "model.safetensors") for f in ("theirs", "again"))
    assert a.keys() == c.keys() and all(a[name].tobytes() == c[name].tobytes() for name in a)


def spoil(folder, target, **config):
    target.mkdir()
    about = json.loads((folder / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(about))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    return target


def test_begin_from_a_folder(ours, tmp_path):
    build, params, folder = ours
    said = []
    found = published.initial(folder, build, said.append)
    assert len(said) == 1 and "48 of 48 parameters" in said[0]
    assert all(np.asarray(params[name]).tobytes() == found[name].tobytes() for name in params)
    with pytest.raises(UserError, match=r"of another network than this one \(num_hidden_groups: 2 vs 1, theirs vs ours\)"):
        published.initial(folder, albert((4,)), said.append)
    for config, words in (({"num_hidden_groups": 3}, "has 4 num_hidden_layers in 3 num_hidden_groups; they must be of equal size"),
                          ({"inner_group_num": 2}, "has inner_group_num 2; it must be 1, other models cannot be read")):
        with pytest.raises(UserError, match=words):
            published.load(spoil(folder, tmp_path / str(*config.values()), **config))


def test_encoders_alone(ours, tmp_path):
    """Without heads the names of tensors lack "albert."."""
    build, params, folder = ours
    transformers.AlbertModel.from_pretrained(folder).save_pretrained(tmp_path / "bare")
    found, back, left = published.load(tmp_path / "bare")
    assert left == ["albert.pooler.bias", "albert.pooler.weight"] and not any("/heads/" in name for name in found.leaves)
    assert all(np.asarray(params[name]).tobytes() == back[name].tobytes() for name in found.leaves)


def test_layers_that_share_do_not_begin_with_berts(tmp_path):
    unshared = bert()
    published.export(unshared, wild(unshared), tmp_path / "bert")
    with pytest.raises(UserError, match="has more layers than the 1 of model/stack/groups/0/attention/query/kernel: layers that share it cannot"):
        published.initial(tmp_path / "bert", bert(shared=("*",)), lambda line: None)
