"""The shipped gin files: parameter counts as published, from abstract shapes; BERT's stages; golden shapes.

They are trained in tests/test_gin_files.py.
"""
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from ptmjax import gin_folder
from ptmjax.cli import config, session
from tests.models.electra import electra
from tests.models.t5 import t5
from tests.models.test_bert_size import listing

GOLDEN = Path(__file__).parents[1] / "golden"
BERT = {"bert_base": 110_106_428, "bert_base_mlm": 110_106_428 - 768 * 768 - 768 - 2 * 768 - 2, "bert_large": 336_226_108}
T5 = {"t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096, "t5_v1_1_small": 76_961_152, "t5_v1_1_base": 247_577_856,
      "t5_v1_1_large": 783_150_080}
ELECTRA = {"electra_small": 13_549_057, "electra_base": 109_483_009, "electra_large": 335_142_913}  # discriminators with their head
BIG = {"t5_3b": (24, 1024, 32, 128, 16384), "t5_11b": (24, 1024, 128, 128, 65536)}  # layers a side, width, heads, head size, hidden
DEMOS = ("bert_demo", "bert_nsp_demo", "t5_demo", "electra_demo", "ernie_demo")
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
    assert {p.stem for p in gin_folder().glob("*.gin")} == {*BERT, *T5, *ELECTRA, *BIG, *DEMOS, ERNIE, DIALOGUE}


@pytest.mark.parametrize("name, parameters", [*BERT.items(), *T5.items()])
def test_counts_as_published(name, parameters):
    assert count(name) == parameters


@pytest.mark.parametrize("name, parameters", ELECTRA.items())
def test_electras_discriminators_as_published(name, parameters):
    assert count(name, "discriminator/*", "generator/embedder/*") == parameters


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
    assert all(1e6 < count(name) < 2.5e6 for name in (*DEMOS, DIALOGUE))


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
                                         ("electra_tiny", electra)])
def test_golden_shapes(name, build):
    """Checkpoints are read by these paths: a change here needs a conversion of old checkpoints. Rewrite the file by hand only."""
    assert listing(build()) == (GOLDEN / f"{name}_parameters.txt").read_text()
