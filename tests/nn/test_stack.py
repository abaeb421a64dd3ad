import fnmatch
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ptmjax.nn.block import Block, Final
from ptmjax.nn.param import param
from ptmjax.nn.stack import Stack, layer
from ptmjax.parallel.mesh import make_mesh
from ptmjax.types import Key, UserError

part = functools.partial
X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
SEE = {"see": jnp.ones((2, 5, 5), bool)}
KEY = Key(jax.random.key(3), jnp.arange(2))
BLOCK = part(Block, 12, 3, 20, rate=0.2, attention_rate=0.2, init=0.3)
GROUPS = [(BLOCK, 2), (part(Block, 12, 2, 8, init=0.3), 1), (part(Final, 12), 1)]
SHORT = [GROUPS[0], GROUPS[2]]


def made(groups=GROUPS, **options):
    return Stack(groups, key=jax.random.key(0), **options)


@functools.cache
def differentiated(graph, capture):
    def loss(tree):
        state, _, aux = nnx.merge(graph, tree)(X, SEE, None, KEY, capture)
        return jnp.exp(state).sum(), aux

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def value_and_grads(stack, capture=frozenset()):
    graph, tree = nnx.split(stack)
    (value, aux), grads = differentiated(graph, capture)(nnx.to_pure_dict(tree))
    return float(value), grads, aux


@functools.cache
def scanned():
    return value_and_grads(made(SHORT), frozenset({"hidden", "probs"}))


@pytest.mark.parametrize("options", [{"loop": True}, {"remat": "full"}, {"remat": "dots"}, {"loop": True, "remat": "full"}])
def test_loop_and_remat_change_nothing(options):
    """Dropout on: the layers' masks are the same too."""
    value, grads, aux = value_and_grads(made(SHORT, **options), frozenset({"hidden", "probs"}))
    assert value == pytest.approx(scanned()[0], rel=1e-6)
    for a, b in [(grads, scanned()[1]), (aux, scanned()[2])]:
        for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
            if "'key'" not in str(path) or "'bias'" not in str(path):  # true gradient 0
                np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max(), err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(("shared", "options"), [
    (("*",), {}), (("attention*",), {"loop": True, "remat": "full"}), (("mlp/wi*", "mlp/wo*"), {})])
def test_layers_that_share_are_a_stack_of_equal_layers(shared, options):
    """Outputs equal, gradients the sum over layers, dropout on; all begins with the bits that it (shared: the first layer) has without."""
    stack, ours = made(SHORT), made(SHORT, shared=shared, **options)
    whole, held = (nnx.to_pure_dict(nnx.state(s)) for s in (stack, ours))
    nnx.update(stack, jax.tree.map(lambda x, like: jnp.broadcast_to(x, like.shape), held, whole))
    value, grads, aux = value_and_grads(ours, frozenset({"hidden", "probs"}))
    plain, summed, wanted = value_and_grads(stack, frozenset({"hidden", "probs"}))
    assert value == pytest.approx(plain, rel=1e-6)
    np.testing.assert_allclose(aux[0]["hidden"], wanted[0]["hidden"], atol=1e-5)
    for (path, g), a, b, all_layers in zip(jax.tree_util.tree_leaves_with_path(grads), *map(jax.tree.leaves, (held, whole, summed)), strict=True):
        name = "/".join(str(p.key) for p in path[2:])
        assert (once := a.ndim < b.ndim) == any(fnmatch.fnmatchcase(name, pattern) for pattern in shared), name
        np.testing.assert_array_equal(a, b[0] if once else b)
        if not name.endswith("key/bias"):  # true gradient 0
            want = all_layers.sum(0) if once else all_layers
            np.testing.assert_allclose(g, want, atol=1e-5 * np.abs(want).max(), err_msg=name)


class Shift(nnx.Module):
    """Adds its one number, whose gradient is then 1 in each layer."""

    def __init__(self, *, key):
        self.by = param(key, (1,), ("norm",), "zeros")

    def __call__(self, state, context, memory, key, capture):
        return state + self.by[...], memory, {}


@pytest.mark.parametrize("loop", [False, True])
def test_gradients_of_shared_layers_are_added_in_float32(loop):
    """In bfloat16 a sum of ones stops at 256."""
    graph, tree = nnx.split(made([(Shift, 300)], shared=["by"], loop=loop))
    grad = jax.grad(lambda tree: nnx.merge(graph, tree)(jnp.zeros(1, jnp.bfloat16), {})[0].astype(jnp.float32).sum())
    [g] = jax.tree.leaves(grad(jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.to_pure_dict(tree))))
    assert g.dtype == jnp.bfloat16 and float(g[0]) == 300


def test_a_pattern_of_what_layers_share_must_match():
    born = lambda *shared: jax.eval_shape(lambda: made(shared=shared))
    with pytest.raises(UserError, match="shared is given 'atention', which matches no parameter of a block; nearest: attention/out/bias,") as e:
        born("mlp*", "atention")
    assert "\n" not in str(e.value)
    born("norm/*")  # of one group alone


def test_loop_and_scan_begin_with_the_same_bits():
    """Both equal to layers made one by one from split keys."""
    trees = [nnx.to_pure_dict(nnx.split(made(loop=loop))[1]) for loop in (False, True)]
    jax.tree.map(np.testing.assert_array_equal, *trees)
    keys = jax.random.split(jax.random.split(jax.random.key(0), len(GROUPS))[0], 2)
    alone = [nnx.to_pure_dict(nnx.split(BLOCK(key=k))[1]) for k in keys]
    jax.tree.map(np.testing.assert_array_equal, trees[0]["groups"][0], jax.tree.map(lambda *x: jnp.stack(x), *alone))


def test_the_stack_is_its_blocks_in_order():
    x, stack = X, made(GROUPS[:2])
    for i, (_, n) in enumerate(GROUPS[:2]):
        for j in range(n):
            graph, tree = nnx.split(stack.groups[i])
            x, _, _ = nnx.merge(graph, jax.tree.map(lambda a: a[j], tree))(x, SEE, None, None, frozenset())
    np.testing.assert_allclose(stack(X, SEE)[0], x, atol=1e-5)


def test_layer_counts_through_the_groups():
    state, memory, aux = made()(X, SEE, capture=frozenset({"hidden", "probs"}))
    assert memory == [None, None, None] and aux[2] == {}
    assert [layer(aux, "probs", i).shape[1] for i in range(3)] == [3, 3, 2]
    np.testing.assert_array_equal(layer(aux, "hidden", 1), aux[0]["hidden"][1])
    np.testing.assert_array_equal(layer(aux, "hidden", 2), aux[1]["hidden"][0])
    for i in (3, -1):
        with pytest.raises(ValueError, match=f"no layer {i}: the groups left 3"):
            layer(aux, "hidden", i)


def test_layers_have_their_own_dropout_key():
    """Layers with equal parameters and inputs would leave equal states if their masks were equal."""
    class Noise(nnx.Module):
        def __init__(self, *, key):
            self.w = param(key, (1,), ("norm",), "ones")

        def __call__(self, state, context, memory, key, capture):
            return state, memory, {"hidden": key.each(lambda k: jax.random.uniform(k, (4,)))}

    aux = made([(Noise, 3), (Noise, 2)])(X, {}, None, KEY)[2]
    drawn = np.concatenate([np.asarray(a["hidden"]).reshape(-1) for a in aux])
    assert len(drawn) == 5 * 2 * 4 == len(np.unique(drawn))


class Counter(nnx.Module):
    """Memory counts the segments; state adds what it finds there."""

    def __init__(self, *, key):
        self.step = param(key, (1,), ("norm",), "ones")

    def init_memory(self, rows, reach=None):
        return {"seen": jnp.zeros((rows, reach or 2))}

    def __call__(self, state, context, memory, key, capture):
        return state + memory["seen"].sum(), {"seen": memory["seen"] + self.step[...]}, {}


@pytest.mark.parametrize("loop", [False, True])
def test_memory_is_the_layers_own(loop):
    stack = made([(Counter, 3), (Counter, 1)], loop=loop)
    first = stack.init_memory(4)
    assert [m["seen"].shape for m in first] == [(4, 3, 2), (4, 1, 2)] and stack.init_memory(4, reach=7)[0]["seen"].shape == (4, 3, 7)
    turned = jax.tree.map(lambda x: x.swapaxes(0, 1), first)
    turned[0]["seen"] = turned[0]["seen"].at[1].set(5.0)
    state, memory, _ = stack(jnp.zeros(()), {}, turned)
    assert float(state) == 5 * 8
    np.testing.assert_array_equal(memory[0]["seen"][:, 0, 0], [1, 6, 1])
    assert memory[1]["seen"].shape == (1, 4, 2)


def test_a_misspelt_remat_names_the_choices():
    with pytest.raises(ValueError, match="'all'.*'dots', 'full', 'none'"):
        made(remat="all")


def test_places_that_do_not_divide_are_told():
    stack, mesh = made([(part(Block, 12, 4, 20), 2)], sequence=True), make_mesh("model=4", jax.devices()[:4])
    with jax.set_mesh(mesh), pytest.raises(UserError, match="axis 'length' of 5 does not divide by mesh axis 'model' of 4") as e:
        jax.eval_shape(lambda x: stack(x, SEE)[0], X)
    assert "\n" not in str(e.value)


def test_a_stack_has_layers():
    with pytest.raises(UserError, match="groups is 0; it must be at least 1"):
        Stack([], key=jax.random.key(0))
