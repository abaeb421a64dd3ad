"""The shipped gin files: parameter counts as published, from abstract shapes; BERT's stages; golden shapes.

They are trained in tests/test_gin_files.py.
"""
import functools
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from ptmjax import gin_folder
from ptmjax.cli import config, session
from ptmjax.convert.network import shapes
from tests.models.albert import albert
from tests.models.electra import electra
from tests.models.roberta import roberta
from tests.models.t5 import t5
from tests.models.test_bert_size import listing

GOLDEN = Path(__file__).parents[1] / "golden"
BERT = {"bert_base": 110_106_428, "bert_base_mlm": 110_106_428 - 768 * 768 - 768 - 2 * 768 - 2, "bert_large": 336_226_108}
# BERT's with other heads. A boundary head: a table of 20 places of 200, two layers with norms, a bias a piece. Another class of the
# sentence, or four more types, is a row. Cased (28996) where the papers are.
CASED = (30522 - 28996) * (768 + 1)
BERT |= {"bert_base_wwm": BERT["bert_base"], "structbert_base": BERT["bert_base"] + 769, "structbert_large": BERT["bert_large"] + 1025,
         "unilm_base": BERT["bert_base"] - CASED + 4 * 768, "unilm_large": BERT["bert_large"] - (30522 - 28996) * 1025 + 4 * 1024,
         "spanbert_base": BERT["bert_base_mlm"] - CASED + 20 * 200 + 1736 * 768 + 768 + 768 * 768 + 768 + 4 * 768 + 28996,
         "spanbert_large": BERT["bert_large"] - (1024 * 1024 + 3 * 1024 + 2) - (30522 - 28996) * 1025
         + 20 * 200 + 2248 * 1024 + 1024 + 1024 * 1024 + 1024 + 4 * 1024 + 28996}
ROBERTA = {"roberta_base": 124_697_433, "roberta_large": 355_412_057}
# Chinese BERT's with the pooler, and the heads of tokens and two classes.
BERT |= {"macbert_base": 102_267_648 + (768 * 768 + 3 * 768 + 21128) + 2 * 768 + 2,
         "macbert_large": 324_472_832 + (1024 * 1024 + 1024) + (1024 * 1024 + 3 * 1024 + 21128) + 2 * 1024 + 2}
T5 = {"t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096, "t5_v1_1_small": 76_961_152, "t5_v1_1_base": 247_577_856,
      "t5_v1_1_large": 783_150_080}
ELECTRA = {"electra_small": 13_549_057, "electra_base": 109_483_009, "electra_large": 335_142_913}  # discriminators with their head
ALBERT = {"albert_base": 11_683_584, "albert_large": 17_683_968, "albert_xlarge": 58_724_864, "albert_xxlarge": 222_595_584}  # with pooler
BIG = {"t5_3b": (24, 1024, 32, 128, 16384), "t5_11b": (24, 1024, 128, 128, 65536)}  # layers a side, width, heads, head size, hidden
MULTILINGUAL = {"xlm_mlm_tlm": 249_071_384, "xlmr_base": 278_295_186, "xlmr_large": 560_142_482}  # as transformers' with their heads
DEMOS = sorted(p.stem for p in gin_folder().glob("*_demo.gin"))
DIALOGUE = "ernie_dialogue"
ERNIE = "ernie_base"


def experiment(name: str):
    """The experiment of a shipped file, and its stages' builds, which gin serves until the next file is loaded; a binding that
    nothing takes is a UserError."""
    found = session.experiment([f"{name}.gin"], [])
    builds = [found.build(stage) for stage in found.stages]
    config.check_used()
    return found, builds


def count(name: str, *patterns: str) -> int:
    build = experiment(name)[1][-1]
    return sum(build.count(pattern) for pattern in patterns or ("*",))


def test_every_file_is_counted_here():
    assert {p.stem for p in gin_folder().glob("*.gin")} == {
        *BERT, *T5, *ROBERTA, *ELECTRA, *ALBERT, *BIG, *MULTILINGUAL, "mbert_base", ERNIE, DIALOGUE, *DEMOS}


@pytest.mark.parametrize("name, parameters", [*BERT.items(), *ROBERTA.items(), *T5.items(), *MULTILINGUAL.items()])
def test_counts_as_published(name, parameters):
    assert count(name) == parameters


@pytest.mark.parametrize("name, width, published", [("roberta_base", 768, 124_645_632), ("roberta_large", 1024, 355_359_744)])
def test_robertas_with_the_pooler_that_they_are_counted_with(name, width, published):
    """And positions, types, norms and rates as of the release; the documented line of another batch changes both."""
    assert count(name, "model/embedder/*", "model/stack/*") + width * width + width == published
    found, [build] = experiment(name)
    net = shapes(build)["model"]
    assert net.embedder.parts["positions"].table.shape == (514, width) and net.embedder.parts["types"].table.shape == (1, width)
    assert net.embedder.norm.eps == net.heads["mlm"].norm.eps == net.stack.groups[0].norms["mlp"].eps == 1e-5
    peak, warm = {"roberta_base": (6e-4, 24_000), "roberta_large": (4e-4, 30_000)}[name]
    assert found.steps == 500_000 and found.stages[0].batch == 8192 and found.stages[0].task == "en_pd_full_512"
    np.testing.assert_allclose([found.optimizer.rate(step, found.steps) for step in (warm // 2, warm, 499_999)],
                               [peak / 2, peak, peak / (500_000 - warm)], rtol=1e-3)
    assert found.optimizer.shared.clip is None and found.optimizer.shared.decay == 0.01


def test_robertas_documented_batches_and_rates():
    """fairseq's README.pretraining; the lines as the gin file has them."""
    said = re.findall(r"--gin\.BATCH=(\d+) --gin\.PEAK=([\de.-]+\d)", (gin_folder() / "roberta_base.gin").read_text())
    assert said == [("256", "1e-4"), ("2048", "5e-4"), ("8192", "7e-4")]
    for batch, peak in said:
        found = session.experiment(["roberta_base.gin"], [f"BATCH={batch}", f"PEAK={peak}"])
        assert found.stages[0].batch == int(batch) and found.optimizer.rate(24_000, found.steps) == pytest.approx(float(peak))


def test_multilingual_bert_as_published():
    """transformers' BertModel of 119,547 pieces has the pooler and no head of the tokens."""
    assert count("mbert_base", "model/embedder/*", "model/stack/*", "model/heads/nsp/dense/*") == 177_853_440


@pytest.mark.parametrize("name, parameters", ELECTRA.items())
def test_electras_discriminators_as_published(name, parameters):
    assert count(name, "discriminator/*", "generator/embedder/*") == parameters


@pytest.mark.parametrize("name, parameters", ALBERT.items())
def test_alberts_as_published(name, parameters):
    """Published are the encoder and its pooler, which is the hidden layer of the sentence order's head. Beside them lie the language model's
    head (H to E with bias and norm, and V biases) and the two classes."""
    assert count(name, "model/embedder/*", "model/project/*", "model/stack/*", "model/heads/sop/dense/*") == parameters
    d = experiment(name)[1][-1].leaves["model/project/kernel"].shape[1]
    assert count(name) == parameters + (d * 128 + 128 + 2 * 128 + 30000) + (2 * d + 2)


@pytest.mark.parametrize("shared, millions", [("['attention*']", 64), ("['mlp*']", 38), ("[]", 89)])
def test_albert_base_of_which_layers_share_less(shared, millions):
    """By the closed form, and as the paper's table 4 says of E 128; norms are of each layer."""
    found = session.experiment(["albert_base.gin"], [f"SHARED={shared}"])
    build = found.build(found.stages[0])
    attention, mlp, norms = 4 * (768 * 768 + 768), 2 * 768 * 3072 + 3072 + 768, 4 * 768
    own = norms + attention * ("attention" not in shared) + mlp * ("mlp" not in shared)
    counted = build.count() - build.count("model/heads/mlm/*") - build.count("model/heads/sop/out/*")
    assert counted == ALBERT["albert_base"] + 11 * own and abs(counted - millions * 1e6) < 1e6


def test_ernie_as_published_with_its_pooler():
    """And with its heads: the transform, its norm and a bias a piece; two classes."""
    d = 768
    assert count(ERNIE, "*/embedder/*", "*/stack/*", "*/nsp/dense/*") == 99_866_112
    assert count(ERNIE) == 99_866_112 + d * d + 3 * d + 18000 + 2 * d + 2


@pytest.mark.parametrize("name, size", BIG.items())
def test_the_largest_t5s_by_the_closed_form(name, size):
    """Tokens; a layer: 4 (8 with cross attention) projections, 2 of the MLP, 2 (3) norms; a norm and a table of buckets a side."""
    n, d, heads, k, f = size
    a = heads * k
    layers = n * (4 * d * a + 2 * d * f + 2 * d) + n * (8 * d * a + 2 * d * f + 3 * d)
    assert count(name) == 32128 * d + layers + 2 * (d + 32 * heads)


def test_demos_are_small():
    assert all(4e5 < count(name) < 2.5e6 for name in (*DEMOS, DIALOGUE))


def test_the_two_stages_of_bert_have_one_schedule():
    """Also where they are shortened: every step has a rate but the first."""
    found, _ = experiment("bert_large")
    assert [(s.task, s.steps, s.batch, s.objective.terms[0].slots) for s in found.stages] == [
        ("en_pd_nsp_128", 900_000, 256, 20), ("en_pd_nsp_512", 100_000, 256, 77)]
    rates = [found.optimizer.rate(step, found.steps) for step in (0, 5_000, 10_000, 505_000, 900_000, 999_999)]
    np.testing.assert_allclose(rates, [0, 5e-5, 1e-4, 5e-5, 1e-4 * 100 / 990, 1e-4 / 990_000], rtol=1e-3, atol=1e-12)
    found = session.experiment(["bert_base.gin"], ["STEPS_SHORT=150", "STEPS_LONG=50", "WARMUP=20"])
    rates = [found.optimizer.rate(step, found.steps) for step in range(200)]
    assert found.steps == 200 and min(rates[1:]) == rates[-1] == pytest.approx(1e-4 / 180, rel=1e-4) and max(rates) == rates[20]


def test_the_head_of_t5_v1_1_begins_as_t5xs():
    """A normal of variance 1 / width cut at two of its deviations, as the MLP's and unlike the attention's."""
    build = experiment("t5_v1_1_small")[1][0]
    table = np.asarray(jax.jit(lambda key: build.init(key)["model/heads/lm/table"])(jax.random.key(0)))
    assert table.std() == pytest.approx(512**-0.5, rel=2e-3) and np.abs(table).max() <= 512**-0.5 * 2 / 0.8796


@pytest.mark.parametrize("name, build", [("t5_tiny", functools.partial(t5, (3, 2))), ("t5_v1_1_tiny", functools.partial(t5, (3, 2), v1_1=True)),
                                         ("electra_tiny", electra), ("albert_tiny", functools.partial(albert, (2, 2))), ("roberta_tiny", roberta)])
def test_golden_shapes(name, build):
    """Checkpoints are read by these paths: a change here needs a conversion of old checkpoints. Rewrite the file by hand only."""
    assert listing(build()) == (GOLDEN / f"{name}_parameters.txt").read_text()
