import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ptmjax.models.embedders import Embedder, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn.linear import Linear
from ptmjax.nn.param import param
from ptmjax.nn.stack import stacked
from ptmjax.training.build import Build, Leaf, matching
from ptmjax.types import UserError
from tests.models.bert import TIES, VOCAB, bert, network

part = functools.partial


class Pair(nnx.Module):
    """Two linear layers of one shape and one of another."""

    def __init__(self, width=4, *, key):
        a, b, c = jax.random.split(key, 3)
        self.a, self.b = (Linear(width, width, ("embed", None), key=k) for k in (a, b))
        self.c = Linear(width, 2 * width, ("embed", None), key=c)


def pairs(ties=(), **options):
    return Build({"one": Pair, "two": Pair}, dict(ties), **options)


def test_paths_name_every_parameter_once():
    build = pairs()
    assert set(build.leaves) == {f"{n}/{m}/{k}" for n in ("one", "two") for m in "abc" for k in ("kernel", "bias")}
    params = build.init(jax.random.key(0))
    assert set(params) == set(build.leaves)
    assert all(params[n].shape == leaf.shape and str(params[n].dtype) == leaf.dtype for n, leaf in build.leaves.items())


def test_networks_get_the_parameters_of_their_path():
    build = pairs()
    params = {n: jnp.full(leaf.shape, float(i)) for i, (n, leaf) in enumerate(build.leaves.items())}
    nets = build.nets(params)
    for i, name in enumerate(build.leaves):
        net, layer, kind = name.split("/")
        assert (np.asarray(getattr(getattr(nets[net], layer), kind)[...]) == i).all()


def test_names_decide_the_initial_bits_not_their_order():
    a = Build({"one": Pair, "two": Pair}).init(jax.random.key(0))
    b = Build({"two": Pair, "one": Pair, "three": Pair}).init(jax.random.key(0))
    assert all((np.asarray(a[n]) == b[n]).all() for n in a)
    assert (np.asarray(a["one/a/kernel"]) != a["two/a/kernel"]).any()


@pytest.mark.parametrize("leaf, lead, sizes", [
    (Leaf((128, 8), "float32", ("vocab", "embed"), 28 * 8), 0, (100, 8)),
    (Leaf((3, 128, 8), "float32", ("layers", "vocab", "embed"), 28 * 8), 1, (3, 100, 8)),
    (Leaf((3, 2, 128), "float32", ("layers", "layers", "vocab"), 28), 2, (3, 2, 100)),
    (Leaf((8, 4), "float32", ("embed", None), 0), 0, (8, 4)), (Leaf((3,), "float32", ("layers",), 0), 1, (3,)), (Leaf((), "float32", (), 0), 0, ())])
def test_sizes_without_padding(leaf, lead, sizes):
    assert (leaf.lead, leaf.sizes) == (lead, sizes)


def test_a_stack_of_tables_is_counted_without_its_padding():
    """Three of 100 rows, each padded to 128: the padding of a layer is named once, and there three times."""
    table = part(param, shape=(128, 8), names=("vocab", "embed"), init=0.1, real=100)

    class Tables(nnx.Module):
        def __init__(self, *, key):
            self.table = table(key)

    build = Build({"m": lambda *, key: stacked(Tables, 3, key)})
    assert build.leaves["m/table"].shape == (3, 128, 8) and build.leaves["m/table"].sizes == (3, 100, 8)
    assert build.count() == 3 * 100 * 8


def test_a_tie_is_stored_once_and_its_gradient_is_the_sum():
    tied, free = bert(rate=0.0), Build({"model": network()})
    table, there = TIES["model/heads/mlm/table"], "model/heads/mlm/table"
    params = tied.init(jax.random.key(1))
    assert there not in params and set(free.leaves) - set(params) == {there}

    def loss(build):
        def f(params):
            net = build.nets(params)["model"]
            return (net.embedder.parts["tokens"]({"tokens": jnp.array([[7, 8]])}) ** 2).sum() + (net.heads["mlm"].table[...][8] ** 3).sum()
        return f

    both = jax.grad(loss(free))(params | {there: params[table]})
    np.testing.assert_allclose(jax.grad(loss(tied))(params)[table], both[table] + both[there], rtol=1e-6)
    assert np.asarray(both[table]).any() and np.asarray(both[there]).any()


def test_a_prefix_ties_all_below_it_and_chains_are_followed():
    build = pairs({"two": "one", "one/b": "one/a"})
    assert set(build.leaves) == {f"one/{m}/{k}" for m in "ac" for k in ("kernel", "bias")}
    assert build.owner("two/b/kernel") == "one/a/kernel" and build.owner("two/c/bias") == "one/c/bias"
    nets = build.nets(build.init(jax.random.key(0)))
    np.testing.assert_array_equal(nets["two"].b.kernel[...], nets["one"].a.kernel[...])


def test_the_longest_tie_counts():
    for ties in ({"two": "one", "two/b": "one/a"}, {"two/b": "one/a", "two": "one"}):
        assert pairs(ties).owner("two/b/kernel") == "one/a/kernel" and pairs(ties).owner("two/a/kernel") == "one/a/kernel"


def test_a_tie_means_whole_path_parts():
    """one/a is no prefix of one/ab."""
    assert pairs({"two/a": "one/a"}).owner("two/ab/kernel") == "two/ab/kernel"


@pytest.mark.parametrize("ties, message", [
    ({"two/d": "one/a"}, r"tie two/d <- one/a: no parameter lies under two/d; there are \['one/a/bias'"),
    ({"two/a": "one/d"}, r"tie two/a <- one/d: .* is nothing"),
    ({"two/a": "one/c"}, r"two/a/bias is \(4,\), one/c/bias is \(8,\)"),
    ({"two/a": "two/a"}, r"tie two/a <- two/a: .* circle"),
    ({"two/a": "one/a", "one/a": "two/a"}, r"tie .*: .* circle"),
    ({"one": "one/a"}, r"tie one <- one/a: .* circle"),
])
def test_a_wrong_tie_is_a_user_error(ties, message):
    with pytest.raises(UserError, match=message) as e:
        pairs(ties)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("size", [129, 256])
def test_a_tie_of_tables_for_other_vocabularies_is_a_user_error(size):
    """All are padded to 256 rows: the head would take its padding for words, or never name the last of them."""
    heads = {"mlm": part(VocabularyHead, size, 24)}
    net = part(Network, part(Embedder, {"tokens": part(Table, "tokens", VOCAB, 24)}, 24), heads=heads)
    mine = r"\(256, 24\)" if size == 256 else r"\(256, 24\) for 129 entries"
    with pytest.raises(UserError, match=rf"tie model/heads/mlm/table .* is {mine}, .*tokens/table is \(256, 24\) for 131 entries"):
        Build({"model": net}, TIES)


def test_frozen_patterns():
    assert pairs(frozen=["two/*"]).frozen == {n for n in pairs().leaves if n.startswith("two/")}
    assert pairs(frozen=["*/a/bias", "one/c/kernel"]).frozen == {"one/a/bias", "two/a/bias", "one/c/kernel"}
    for pattern in ("too/*", "two", "Two/*"):
        with pytest.raises(UserError, match=f"frozen pattern '{pattern[:3]}.*matches no parameter"):
            pairs(frozen=[pattern])


def test_matching_is_by_shell_pattern():
    assert matching("a/*", ["a/b", "a/c/d", "b/a"], "x") == ["a/b", "a/c/d"]


def test_count_leaves_out_padding_and_counts_ties_once():
    build, free = bert(), Build({"model": network()})
    assert build.leaves["model/embedder/parts/tokens/table"].shape == (256, 24)
    assert build.count("*/tokens/table") == VOCAB * 24 and build.count("*/mlm/bias") == VOCAB
    assert free.count() - build.count() == VOCAB * 24
    assert build.count("model/stack/*") == 3 * (4 * (24 * 24 + 24) + 24 * 40 + 40 + 40 * 24 + 24 + 4 * 24)


def test_compute_type_is_what_networks_see():
    build = pairs(compute="bfloat16")
    params = build.init(jax.random.key(0))
    assert {str(x.dtype) for x in params.values()} == {"float32"}
    assert build.nets(params)["one"].a.kernel[...].dtype == jnp.bfloat16
