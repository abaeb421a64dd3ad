import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ptmjax.nn.block import Block, Final, T5Block
from ptmjax.types import Key

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 12)).astype(np.float32)
SEE = {"see": np.tri(5, dtype=bool)[None].repeat(2, 0)}
NONE = frozenset()


def made(**options):
    return Block(12, 3, 20, init=0.3, key=jax.random.key(0), **options)


def test_post_norm_is_after_each_sum():
    b = made()
    x = b.norms["attention"](X + b.attention(X, X, SEE["see"])[0])
    want = b.norms["mlp"](x + b.mlp(x))
    np.testing.assert_allclose(b(X, SEE, None, None, NONE)[0], want, atol=1e-6)
    np.testing.assert_allclose(np.asarray(want).mean(-1), 0, atol=1e-6)


def test_pre_norm_is_before_each_part_and_leaves_the_sum_alone():
    b = made(place="pre", norm="rms", eps=1e-6)
    n = b.norms["attention"](X)
    x = X + b.attention(n, n, SEE["see"])[0]
    np.testing.assert_allclose(b(X, SEE, None, None, NONE)[0], x + b.mlp(b.norms["mlp"](x)), atol=1e-6)


@pytest.mark.parametrize("option, message", [
    ({"place": "before"}, "'before'.*'post', 'pre'"), ({"act": "gleu"}, "'gleu'.*'gelu'"), ({"norm": "lauer"}, "'lauer'.*'layer', 'rms'"),
    ({"init": "uniform"}, "'uniform'.*'fan_in'")])
def test_misspelt_values_name_the_choices(option, message):
    with pytest.raises(ValueError, match=message):
        Block(12, 3, 20, key=jax.random.key(0), **option)


def test_cross_attention_is_between_self_attention_and_mlp():
    b, over = made(cross=True), RNG.normal(size=(2, 4, 12)).astype(np.float32)
    context = SEE | {"encoded": over, "encoded_see": RNG.random((2, 5, 4)) < 0.7}
    y, _, aux = b(X, context, None, None, frozenset({"probs"}))
    x = b.norms["attention"](X + b.attention(X, X, SEE["see"])[0])
    x = b.norms["cross"](x + b.cross(x, over, context["encoded_see"])[0])
    np.testing.assert_allclose(y, b.norms["mlp"](x + b.mlp(x)), atol=1e-5)
    assert aux["probs"].shape == (2, 3, 5, 5) and aux["cross_probs"].shape == (2, 3, 5, 4)


def test_capture_and_memory():
    y, memory, aux = made()(X, SEE, {"mine": X}, None, frozenset({"hidden", "scores", "probs", "values"}))
    assert set(aux) == {"hidden", "scores", "probs", "values"} and memory["mine"] is X
    np.testing.assert_array_equal(aux["hidden"], y)
    assert made()(X, SEE, None, None, NONE)[2] == {} and made().init_memory(4) is None


def test_each_place_has_its_own_dropout():
    """With the keys of all places equal, the two residual masks would be one."""
    key = Key(jax.random.key(0), jnp.arange(2))
    b = made(place="pre", rate=0.5, attention_rate=0.0)
    ones = lambda name: np.asarray(b.residual(jnp.zeros((2, 5, 12)), name, lambda h: (jnp.ones((2, 5, 12)), {}), key)[0])
    assert 0.3 < (ones("attention") != ones("mlp")).mean() < 0.7
    assert np.abs(np.asarray(b(X, SEE, None, key, NONE)[0]) - b(X, SEE, None, None, NONE)[0]).max() > 0.1
    probs = made(rate=0.0, attention_rate=0.5)
    assert np.abs(np.asarray(probs(X, SEE, None, key, NONE)[0]) - probs(X, SEE, None, None, NONE)[0]).max() > 0.01


def test_final_is_a_norm_and_keeps_memory():
    final = Final(12, norm="rms", eps=1e-6, key=jax.random.key(0))
    y, memory, aux = final(X, {}, {"m": X}, None, NONE)
    np.testing.assert_allclose((np.asarray(y) ** 2).mean(-1), 1, rtol=1e-4)
    assert memory["m"] is X and aux == {} and final.init_memory(3) is None


def test_final_drops_out_after_its_norm():
    final, key = Final(12, rate=0.5, key=jax.random.key(0)), Key(jax.random.key(0), jnp.arange(2))
    y, whole = (np.asarray(final(X, {}, None, k, NONE)[0]) for k in (key, None))
    kept = y != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(y[kept], 2 * whole[kept], rtol=1e-6)


def t5(**options):
    return T5Block(12, 3, 5, 20, key=jax.random.key(0), **options)


def test_t5s_block_is_pre_norm_without_biases_and_scale():
    b, over = t5(cross=True, rate=0.0), RNG.normal(size=(2, 4, 12)).astype(np.float32)
    bias = jnp.asarray(RNG.normal(size=(1, 3, 5, 5)), jnp.float32)
    context = SEE | {"encoded": over, "encoded_see": RNG.random((2, 5, 4)) < 0.7, "bias": bias}
    y, _, aux = b(X, context, None, None, frozenset({"scores"}))
    n = b.norms["attention"](X)
    x = X + b.attention(n, n, SEE["see"], bias=bias)[0]
    x = x + b.cross(b.norms["cross"](x), over, context["encoded_see"])[0]
    np.testing.assert_allclose(y, x + b.mlp(b.norms["mlp"](x)), atol=1e-5)
    q, k = (p(n).reshape(2, 5, 3, 5) for p in (b.attention.query, b.attention.key))
    np.testing.assert_allclose(aux["scores"], jnp.einsum("blhk,bmhk->bhlm", q, k) + bias, atol=1e-5)
    assert not any("bias" in str(path) for path, _ in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.split(b)[1])))


def test_t5s_initial_laws():
    b = T5Block(256, 4, 100, 600, act="gated_gelu_tanh", key=jax.random.key(0))
    std = lambda layer: float(layer.kernel[...].std())
    a = b.attention
    want = {a.query: (256 * 100) ** -0.5, a.key: 1 / 16, a.value: 1 / 16, a.out: 0.05, b.mlp.wi: 1 / 16, b.mlp.gate: 1 / 16, b.mlp.wo: 600**-0.5}
    for layer, deviation in want.items():
        assert std(layer) == pytest.approx(deviation, rel=0.01)
    assert np.abs(b.mlp.wi.kernel[...]).max() < 2 / 16 / 0.87 < np.abs(a.key.kernel[...]).max()  # only the MLP's law is cut


def test_t5s_dropout_is_at_four_places():
    """Probabilities, sums and the MLP's hidden, each with bits of its own; 0 at all of them is evaluation."""
    key = Key(jax.random.key(0), jnp.arange(2))
    b = t5(rate=0.5)
    assert b.rate == b.attention_rate == b.mlp.rate == 0.5
    whole, dropped = (np.asarray(b(X, SEE, None, k, NONE)[0]) for k in (None, key))
    assert np.abs(whole - dropped).max() > 0.1
    np.testing.assert_array_equal(t5(rate=0.0)(X, SEE, None, key, NONE)[0], whole)
    for place in ("rate", "attention_rate", "mlp"):
        only = t5(rate=0.0)
        setattr(*((only.mlp, "rate") if place == "mlp" else (only, place)), 0.5)
        assert np.abs(np.asarray(only(X, SEE, None, key, NONE)[0]) - whole).max() > 0.01, place
