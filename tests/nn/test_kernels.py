"""Every kernel against the reference. Pallas' kernels for TPUs run in its interpreter here, and are compiled for a TPU that is not here."""
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import pallas, topologies

from ptmjax.nn import kernels
from ptmjax.nn.attention import Attention, attention
from ptmjax.nn.kernels import KERNELS, Needs, choose
from ptmjax.nn.masks import See
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.parallel.libtpu import ALONE
from ptmjax.parallel.mesh import make_mesh
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training.state import Plan
from ptmjax.training.step import make_step
from ptmjax.types import Key, UserError
from tests.compiled import needs_libtpu
from tests.models import t5
from tests.models.bert import off

B, H, K = 2, 2, 8
HERE = [name for name in KERNELS if name != "cudnn"]


@pytest.fixture
def tpu(monkeypatch):
    """This machine passes for a TPU: Pallas interprets, four blocks of 128 make a square of 256."""
    real = pallas.pallas_call
    monkeypatch.setattr(pallas, "pallas_call", lambda *args, **more: real(*args, **more | {"interpret": True}))
    monkeypatch.setattr(kernels, "platform", lambda: "tpu")
    monkeypatch.setattr(kernels, "BLOCKS", (128,))


def packed(length: int, *ends: int) -> jax.Array:
    """int32 [B, L]: examples 1, 2, ... that end there, one place earlier in the second row, and padding behind."""
    at = np.arange(length) + np.arange(B)[:, None]
    number = 1 + sum((at >= end).astype(np.int32) for end in ends)
    return jnp.asarray(np.where(at >= ends[-1], 0, number), jnp.int32)


ONE, TWO = packed(128, 50, 110), packed(256, 128, 200)
SEES = {  # of a decoder's second example the encoder has nothing; neither length is a multiple of 128
    "packed": See(ONE, ONE), "causal": See(TWO, TWO, causal=True), "cross": See(packed(100, 60, 90), packed(120, 110)),
}


def computed(kernel: str, case: str, bias: bool, dtype: str = "float32", mesh=None) -> list[np.ndarray]:
    """The result, and the gradients to q, k, v and the bias; keys and values of padding are large."""
    see, rng = SEES[case], np.random.default_rng(0)
    (_, n), (_, m) = see.queries.shape, see.keys.shape
    q, k, v, dy = (rng.normal(size=(B, length, H, K)) for length in (n, m, m, n))
    k, v = (np.where(np.asarray(see.keys)[..., None, None] > 0, x, 100) for x in (k, v))
    xs = [jnp.asarray(x, "bfloat16").astype(dtype) for x in (q, k, v)] + [jnp.asarray(rng.normal(size=(1, H, n, m)), "float32")] * bias

    def run(dy, *xs):
        y, pull = jax.vjp(lambda q, k, v, bias=None: attention(q, k, v, see, bias=bias, kernel=kernel)[0], *xs)
        return y, *pull(dy.astype(dtype))

    with jax.set_mesh(mesh or make_mesh("", jax.devices()[:1])):
        return [np.asarray(x, np.float32) for x in jax.jit(run)(jnp.asarray(dy), *xs)]


expected = functools.cache(functools.partial(computed, "reference"))


def biased(kernel: str, case: str) -> bool:
    return kernel != "splash" and case != "packed"


@pytest.mark.parametrize("case", SEES)
@pytest.mark.parametrize("kernel", HERE)
def test_it_is_the_reference(kernel, case, tpu):
    """Values and every gradient to 1e-5 of the greatest (found 2e-6); what is hidden gets 0 and gives no gradient."""
    found = computed(kernel, case, biased(kernel, case))
    assert max(map(off, found, expected(case, biased(kernel, case)))) < 1e-5
    see = np.asarray(SEES[case].dense())
    assert not found[0][~see.any(2)].any() and found[0][see.any(2)].all()
    assert not found[1][~see.any(2)].any() and not any(g[~see.any(1)].any() for g in found[2:4])
    if biased(kernel, case):
        assert not found[4][0][:, ~see.any(0)].any()


@pytest.mark.parametrize("kernel", HERE)
def test_in_bfloat16_it_stays_near_float32(kernel, tpu):
    """Two hundredths of the greatest, five steps of the type: found 1e-2 (flash, whose gradient of the scores is a difference with the
    rounded result), by the reference 4e-3."""
    exact = expected("cross", biased(kernel, "cross"))
    assert 1e-4 < max(map(off, computed(kernel, "cross", biased(kernel, "cross"), "bfloat16"), exact)) < 0.02


@pytest.mark.parametrize("kernel, case", [("splash", "packed"), ("flash", "cross")])
def test_every_device_has_rows_and_heads_of_its_own(kernel, case, tpu):
    """The gradient to a bias that all rows share too."""
    found = computed(kernel, case, biased(kernel, case), mesh=make_mesh("data=2,model=2", jax.devices()[:4]))
    assert max(map(off, found, expected(case, biased(kernel, case)))) < 1e-5


# ------------------------------------------------------------------ the choice
BERT = Needs(128, 128, 64, "bfloat16")


@pytest.mark.parametrize("platform, needs, kernel", [
    ("cpu", BERT, "reference"), ("gpu", BERT, "reference"), ("tpu", BERT, "splash"), ("tpu", BERT._replace(dtype="float32"), "splash"),
    ("tpu", BERT._replace(bias=True), "flash"), ("tpu", BERT._replace(dropout=True), "reference"), ("tpu", BERT._replace(capture=True), "reference"),
    ("tpu", BERT._replace(dense=True), "reference"), ("tpu", BERT._replace(dtype="float16"), "reference"), ("tpu", BERT._replace(size=192), "splash"),
    ("tpu", BERT._replace(size=192, bias=True), "reference"), ("tpu", BERT._replace(size=256, bias=True), "flash"),
    ("tpu", BERT._replace(queries=114, keys=512), "splash"), ("tpu", BERT._replace(queries=64, keys=64), "reference"),
])
def test_what_auto_chooses(platform, needs, kernel):
    assert choose("auto", platform, needs) == kernel
    assert choose(kernel, platform, needs) == kernel


@pytest.mark.parametrize("kernel, platform, needs, missing, others", [
    ("splash", "tpu", BERT._replace(bias=True), "no bias", "'reference', 'xla', 'flash'"),
    ("splash", "cpu", BERT, "no code for cpu devices", "'reference', 'xla'"),
    ("flash", "tpu", BERT._replace(dense=True), "no mask beyond segments and causality", "'reference', 'xla'"),
    ("flash", "tpu", BERT._replace(size=192), "no heads of size 192", "'reference', 'xla', 'splash'"),
    ("flash", "tpu", BERT._replace(dtype="float16"), "no type float16", "'reference', 'xla'"),
    ("cudnn", "gpu", BERT._replace(dtype="float32"), "no type float32", "'reference', 'xla'"),
    ("cudnn", "gpu", BERT._replace(size=12), "no heads of size 12", "'reference', 'xla'"),
    ("cudnn", "gpu", BERT._replace(queries=127), "no lengths 127 and 128", "'reference', 'xla'"),
    ("xla", "gpu", BERT._replace(dropout=True, capture=True), "no dropout of probabilities (attention_rate), no scores and probabilities to capture", "'reference'"),
])
def test_a_kernel_that_lacks_something_is_refused_in_one_line_with_those_that_have_it(kernel, platform, needs, missing, others):
    with pytest.raises(UserError) as e:
        choose(kernel, platform, needs)
    assert str(e.value) == (f"attention kernel {kernel!r} has {missing}: let the kernel of the block (Block.kernel, T5Block.kernel) be "
                            f"'auto' or one of {others}")


def test_a_call_says_what_it_needs():
    q, see, key = jnp.ones((B, 4, H, K)), See(ONE[:, :4], ONE[:, :4]), Key(jax.random.key(0), jnp.arange(B))
    call = functools.partial(attention, q, q, q, kernel="xla")
    shapes = lambda see, **more: jax.eval_shape(lambda: call(see, **more))
    assert set(shapes(see, rate=0.5, capture=frozenset({"values", "hidden"}))[1]) == {"values"}  # no key: evaluation
    assert shapes(np.tri(4, dtype=bool)[None], key=key)[0].shape == q.shape
    for more, missing in [(dict(rate=0.5, key=key), "dropout"), (dict(capture=frozenset({"scores"})), "capture"), (dict(capture=frozenset({"probs"})), "capture")]:
        with pytest.raises(UserError, match=missing):
            call(see, **more)
    for other, missing in [(see, "no code for cpu devices:"), (see & np.tri(4, dtype=bool), "no mask beyond"), (see.dense(), "no mask beyond")]:
        with pytest.raises(UserError, match=missing):
            attention(q, q, q, other, kernel="splash")


def test_what_calls_get_is_noted():
    """By all that listen; nothing of a call before or after."""
    q, see = jnp.ones((B, 4, H, K)), See(ONE[:, :4], ONE[:, :4])
    call = lambda kernel: jax.eval_shape(lambda: attention(q, q, q, see, kernel=kernel))
    call("xla")
    with kernels.noting() as outer:
        call("auto")
        with kernels.noting() as inner:
            call("xla")
    call("xla")
    assert (outer, inner) == ({"reference", "xla"}, {"xla"})


def test_a_misspelt_kernel_names_the_choices():
    with pytest.raises(UserError, match="kernel is 'flesh'; it may be one of 'auto', 'cudnn', 'flash', 'reference', 'splash', 'xla'"):
        Attention(12, 3, kernel="flesh", key=jax.random.key(0))


# ------------------------------------------------------------------ compiled for what is not here
def test_cudnn_is_called_forward_and_backward(monkeypatch):
    """Lowered for CUDA; that cuDNN is installed is told, not asked."""
    from jax._src.cudnn import fused_attention_stablehlo
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(kernels, "platform", lambda: "gpu")
    x, bias = jnp.ones((B, 128, H, K), jnp.bfloat16), jnp.ones((1, H, 128, 128))
    loss = lambda x, bias: attention(x, x, x, See(ONE, ONE), bias=bias, kernel="cudnn")[0].astype(jnp.float32).sum()
    text = jax.jit(jax.grad(loss, (0, 1))).trace(x, bias).lower(lowering_platforms=("cuda",)).as_text()
    for call in ("__cudnn$fmhaScaleBiasSoftmax(", "__cudnn$fmhaScaleBiasSoftmaxBackward("):
        assert [f"tensor<{B}x{H}x128x128xbf16>" in line for line in text.splitlines() if call in line] == [True], call  # the bias of every head
    assert choose("auto", "gpu", BERT) == "reference"


@needs_libtpu
def test_a_train_step_of_t5_compiles_for_tpus(monkeypatch):
    """On 2 x 2 of them, rows and heads split, self-attention with its bias by flash, cross attention by splash."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    mesh = make_mesh("data=2,model=2", topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices)
    build = t5.t5((1, 1), v1_1=True, width=32, heads=4, size=8, hidden=64)
    plan = Plan(build, Seq2Seq(), optax.sgd(1e-3), mesh, rows=4, seed=0, micro=1)
    batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows_sharding(mesh)) for name, x in t5.batch(4, 128, 100).items()}
    with jax.set_mesh(mesh):
        text = make_step(plan).lower(plan.abstract, batch).compile().as_text()
    for name in ("flash_attention", "flash_mha_bwd_dq", "flash_mha_bwd_dkv", "splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv"):
        assert re.search(rf"%{name}\S* = .*tpu_custom_call", text), name
