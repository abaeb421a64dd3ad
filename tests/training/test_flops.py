import jax
import jax.numpy as jnp
import pytest

from ptmjax.nn.kernels import KERNELS
from ptmjax.nn.masks import See
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training.flops import flops
from tests.compiled import SHRUNK, compiled, step
from tests.models.albert import albert
from tests.models.bert import batch


def count(f, *shapes):
    return flops(jax.make_jaxpr(f)(*(jnp.zeros(shape) for shape in shapes)).jaxpr)


PRODUCT = 2 * 3 * 4 * 5


@pytest.mark.parametrize("f, times", [
    (lambda x, w: x @ w, 1),
    (jax.jit(lambda x, w: jnp.tanh(x @ w)), 1),
    (lambda x, w: jax.vmap(lambda row: row @ w)(x), 1),
    (lambda x, w: jax.lax.scan(lambda c, _: (c + x @ w, None), jnp.zeros((3, 5)), None, length=7), 7),
    (lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: 2 * (x @ w) + x @ (2 * w)), 2),
    (lambda x, w: jax.grad(lambda x, w: (x @ w).sum() ** 2, (0, 1))(x, w), 3),
    (lambda x, w: jax.grad(jax.checkpoint(lambda x, w: (jnp.sin(x @ w) ** 2).sum()), (0, 1))(x, w), 4),  # it multiplies again
])
def test_matrix_products_are_counted_where_they_stand(f, times):
    assert count(f, (3, 4), (4, 5)) == times * PRODUCT


@pytest.mark.parametrize("kernel", ["splash", "flash"])
def test_kernels_count_on_all_devices(kernel):
    """As much as the scores held in full take, and of the gradient two products more, twice: it makes the scores again in both parts."""
    see, shape = See(jnp.ones((4, 256), int), jnp.ones((4, 256), int)), (4, 256, 2, 8)
    call = lambda *qkv: KERNELS[kernel].call(*qkv, see)
    square = 2 * 4 * 2 * 256 * 256 * 8
    with jax.set_mesh(make_mesh("data=2,model=2", jax.devices()[:4])):
        assert count(call, shape, shape, shape) == 2 * square
        assert count(jax.grad(lambda *qkv: call(*qkv).sum(), (0, 1, 2)), shape, shape, shape) == pytest.approx(9 * square, rel=0.01)


def test_batched_and_convolved():
    assert count(lambda q, k: jnp.einsum("blhk,bmhk->bhlm", q, k), (2, 3, 4, 5), (2, 6, 4, 5)) == 2 * 2 * 4 * 3 * 6 * 5
    convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    assert count(convolve, (2, 10, 3), (5, 3, 7)) == 2 * 2 * 10 * 7 * 5 * 3


def test_layers_that_share_are_run_as_often():
    def of(shared):
        build = albert((4,), shared=shared)
        params = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in build.leaves.items()}
        loss = lambda params: build.nets(params)["model"].encode(batch()).state.sum()
        return flops(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)

    assert of(["*"]) == of([])


WIDE = {  # sizes at which products are nearly all of the work
    "bert_large": dict(D=256, HIDDEN=1024), "t5_large": dict(D=256, SIZE=64, HIDDEN=1024),
    "electra_large": dict(D=256, E=256, HIDDEN=1024, GD=128, GHIDDEN=512),
}


@pytest.mark.parametrize("name, layers", [
    ("bert_large", 2), *(pytest.param(name, n, marks=pytest.mark.slow) for name in SHRUNK for n in (2, 4) if (name, n) != ("bert_large", 2))])
def test_a_step_is_what_xla_counts_without_loops(name, layers):
    """XLA also counts elementwise work: 1 to 5 % at these sizes. The same step with its layers in a loop counts as many products by our
    count, and by XLA's fewer, which takes one layer of each stack."""
    sizes = WIDE[name] | dict(LAYERS=layers, RATE=0.0)
    plain, loop = ({"Stack.loop": True}, {})
    count = lambda more: flops(step(name, "cpu:1", "data=1", **sizes, **more).traced.jaxpr.jaxpr)
    assert count(plain) == count(loop)
    assert 1 <= compiled(name, "cpu:1", "data=1", **sizes, **plain).cost_analysis()["flops"] / count(plain) <= 1.05
    if layers == 4:
        assert compiled(name, "cpu:1", "data=1", **sizes).cost_analysis()["flops"] < 0.7 * count(loop)
