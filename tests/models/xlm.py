"""A small XLM of awkward sizes, and a batch of texts beside their translations for it."""
import jax.numpy as jnp
import numpy as np

from ptmjax.convert import xlm
from ptmjax.training.build import Build
from tests.models.bert import VOCAB, batch

LENGTH, LANGUAGES = 37, 3
CONFIG = dict(vocab_size=VOCAB, emb_dim=24, n_layers=3, n_heads=3, n_langs=LANGUAGES, max_position_embeddings=LENGTH, dropout=0.0,
              attention_dropout=0.0, gelu_activation=True, pad_index=0)


def tiny(**more) -> Build:
    return xlm.build(xlm.fields(CONFIG | more, "here"), ["pred_layer.proj.bias"])


def bilingual(seed: int = 0) -> dict:
    """Rows whose positions begin again where another language does, padded."""
    b = batch(seed=seed)
    real, rng = np.asarray(b["segments"]), np.random.default_rng(seed)
    middle = rng.integers(2, 9, (len(real), 1))
    second, place = np.arange(real.shape[1]) >= middle, np.arange(real.shape[1])
    languages = np.where(second, rng.integers(1, LANGUAGES, (len(real), 1)), 0) * real
    out = {name: x for name, x in b.items() if name not in ("types", "label")}
    return out | {"positions": jnp.asarray((place - middle * second) * real, jnp.int32), "languages": jnp.asarray(languages, jnp.int32)}
