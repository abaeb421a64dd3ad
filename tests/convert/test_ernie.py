"""ERNIE folders of transformers: read, and written as the BERT that they are."""
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from ptmjax.convert import ernie, published
from ptmjax.types import UserError
from tests.convert.test_bert import check_logits, spoil
from tests.models.bert import VOCAB

SIZES = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=37,
             type_vocab_size=3, hidden_act="relu")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(model, its folder)."""
    torch.manual_seed(0)
    model = transformers.ErnieForPreTraining(transformers.ErnieConfig(**SIZES, attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.3)
    folder = tmp_path_factory.mktemp("theirs") / "ernie"
    model.save_pretrained(folder)
    return model, folder


def test_a_folder_of_transformers_gives_its_logits(theirs):
    model, folder = theirs
    build, params, left = published.load(folder)
    assert left == [] and set(build.factories) == {"model"}
    check_logits(build, params, model)


def test_it_is_written_as_the_bert_that_it_equals(theirs, tmp_path):
    model, folder = theirs
    build, params, _ = published.load(folder)
    published.export(build, params, tmp_path / "out")
    opened, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"] and not report["unexpected_keys"] and opened.config.hidden_act == "relu"
    check_logits(build, params, opened.eval())
    again = published.load(tmp_path / "out")[1]
    assert again.keys() == params.keys() and all(np.array_equal(again[name], x) for name, x in params.items())


def test_a_run_begins_with_it_and_bare_encoders_of_older_names(theirs, tmp_path):
    _, folder = theirs
    build, params, _ = published.load(folder)
    said = []
    first = published.initial(folder, build, said.append)
    assert first.keys() == params.keys() and len(said) == 1 and "begun with" in said[0]
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    there = spoil(folder, tmp_path / "bare", drop=[name for name in tensors if name.startswith("cls.")])
    bare = {name.removeprefix("ernie.").replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
            for name, x in safetensors.numpy.load_file(there / "model.safetensors").items()}
    safetensors.numpy.save_file(bare, there / "model.safetensors")
    found = published.load(there)[1]
    assert found and all(np.array_equal(x, params[name]) for name, x in found.items())


def test_later_ernies_are_refused(theirs, tmp_path):
    with pytest.raises(UserError, match="use_task_id true; it must be false, other models cannot be read"):
        published.load(spoil(theirs[1], tmp_path / "later", {"use_task_id": True}))
    assert ernie.MODEL == "ernie"
