import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ptmjax.nn.attention import Attention, attention
from ptmjax.nn.positions import rotary_angles
from ptmjax.types import Key

RNG = np.random.default_rng(0)
B, L, M, H, K = 2, 5, 7, 3, 4
Q, KEYS, V = (RNG.normal(size=(B, n, H, K)).astype(np.float32) for n in (L, M, M))
SEE = np.concatenate([np.ones((B, L, 1), bool), RNG.random((B, L, M - 1)) < 0.5], -1)
BIAS = RNG.normal(size=(1, H, L, M)).astype(np.float32)


def torchs(see, bias):
    t = [torch.from_numpy(np.swapaxes(x, 1, 2).copy()) for x in (Q, KEYS, V)]
    add = torch.from_numpy(np.where(see[:, None], bias, -np.inf).astype(np.float32))
    return torch.nn.functional.scaled_dot_product_attention(*t, attn_mask=add, scale=1.0).transpose(1, 2).numpy()


@pytest.mark.parametrize("bias", [None, BIAS])
def test_it_is_torchs(bias):
    y, aux = attention(Q, KEYS, V, SEE, bias=bias)
    np.testing.assert_allclose(y, torchs(SEE, 0.0 if bias is None else bias), atol=2e-6)
    assert aux == {}


def test_capture_returns_scores_probs_and_values():
    y, aux = attention(Q, KEYS, V, SEE, bias=BIAS, capture=frozenset({"scores", "probs", "values"}))
    np.testing.assert_allclose(aux["scores"], np.einsum("blhk,bmhk->bhlm", Q, KEYS) + BIAS, atol=1e-5)
    np.testing.assert_allclose(aux["probs"].sum(-1), 1, rtol=1e-6)
    assert not np.asarray(aux["probs"])[~np.broadcast_to(SEE[:, None], (B, H, L, M))].any()
    np.testing.assert_allclose(np.einsum("bhlm,bmhk->blhk", aux["probs"], aux["values"]), y, atol=1e-6)
    assert set(attention(Q, KEYS, V, SEE, capture=frozenset({"probs", "hidden"}))[1]) == {"probs"}


def test_a_query_that_sees_nothing_gets_zero_and_gives_no_gradient():
    see = SEE.copy()
    see[1, 2] = False
    y, aux = attention(Q, KEYS, V, see, bias=BIAS, capture=frozenset({"probs"}))
    assert not np.asarray(y[1, 2]).any() and not np.asarray(aux["probs"][1, :, 2]).any()
    np.testing.assert_array_equal(np.delete(y[1], 2, 0), np.delete(attention(Q, KEYS, V, SEE, bias=BIAS)[0][1], 2, 0))
    grads = jax.grad(lambda q, k, v: attention(q, k, v, see)[0][1, 2].sum(), (0, 1, 2))(Q, KEYS, V)
    assert not any(np.asarray(g).any() for g in grads)


def test_what_is_not_seen_has_no_effect_and_no_gradient():
    hidden = ~SEE[0, 3]
    assert hidden.any()
    other = [x.copy() for x in (KEYS, V)]
    for x in other:
        x[0, hidden] = 1e4
    np.testing.assert_array_equal(attention(Q, *other, SEE)[0][0, 3], attention(Q, KEYS, V, SEE)[0][0, 3])
    for g in jax.grad(lambda k, v: attention(Q, k, v, SEE)[0][0, 3].sum(), (0, 1))(KEYS, V):
        assert not np.asarray(g)[0, hidden].any() and not np.asarray(g)[1].any() and np.asarray(g)[0, ~hidden].any()


def test_softmax_is_float32_in_bfloat16():
    half = [jnp.asarray(x, jnp.bfloat16) for x in (Q, KEYS, V)]
    y, aux = attention(*half, SEE, capture=frozenset({"scores", "probs"}))
    assert y.dtype == jnp.bfloat16 and aux["scores"].dtype == aux["probs"].dtype == jnp.float32
    exact = attention(*(x.astype(jnp.float32) for x in half), SEE, capture=frozenset({"probs"}))
    np.testing.assert_allclose(aux["probs"], exact[1]["probs"], atol=1e-6)
    np.testing.assert_allclose(y, exact[0], atol=0.02)


def test_dropout_works_on_the_probabilities():
    key = Key(jax.random.key(0), jnp.arange(B))
    y, aux = attention(Q, KEYS, V, SEE, rate=0.5, key=key, capture=frozenset({"probs"}))
    np.testing.assert_allclose(aux["probs"].sum(-1), 1, rtol=1e-6)  # captured before dropout
    assert np.abs(np.asarray(y) - attention(Q, KEYS, V, SEE)[0]).max() > 0.1
    mean = sum(attention(Q, KEYS, V, SEE, rate=0.5, key=key.fold(i))[0] for i in range(400)) / 400
    np.testing.assert_allclose(mean, attention(Q, KEYS, V, SEE)[0], atol=0.3)


def made(width=12, heads=3):
    layer = Attention(width, heads, init=0.5, key=jax.random.key(0))
    for name in ("query", "key", "value", "out"):
        getattr(layer, name).bias[...] = RNG.normal(size=width).astype(np.float32)
    return layer


def test_the_layer_is_torchs_multi_head_attention():
    """Scaled by 1/sqrt(head size), projected in and out, over another sequence."""
    layer, x, over = made(), RNG.normal(size=(B, L, 12)).astype(np.float32), RNG.normal(size=(B, M, 12)).astype(np.float32)
    t = lambda p: torch.from_numpy(np.array(p[...]).T.copy())
    there = torch.nn.functional.multi_head_attention_forward(
        *(torch.from_numpy(v.swapaxes(0, 1).copy()) for v in (x, over, over)), 12, 3,
        torch.cat([t(p.kernel) for p in (layer.query, layer.key, layer.value)]), torch.cat([t(p.bias) for p in (layer.query, layer.key, layer.value)]),
        None, None, False, 0.0, t(layer.out.kernel), t(layer.out.bias), training=False,
        attn_mask=torch.from_numpy(np.repeat(~SEE, 3, 0)), need_weights=False)[0]
    np.testing.assert_allclose(layer(x, over, SEE)[0], there.numpy().swapaxes(0, 1), atol=2e-5)


def test_angles_make_it_relative():
    """Turned queries and keys: moving all positions changes nothing, moving some does."""
    layer, x, see = made(), RNG.normal(size=(B, L, 12)).astype(np.float32), np.ones((B, L, L), bool)
    at = lambda where: layer(x, x, see, angles=rotary_angles(jnp.asarray(where)[None], 4))[0]
    np.testing.assert_allclose(at(np.arange(L)), at(np.arange(L) + 9), atol=1e-5)
    assert np.abs(at(np.arange(L)) - at(np.arange(L) * 2)).max() > 1e-2


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="width 10 does not divide by 3 heads"):
        Attention(10, 3, key=jax.random.key(0))


def test_heads_of_their_own_size():
    layer = Attention(10, 3, size=7, init=0.5, key=jax.random.key(0))
    assert layer.query.kernel.shape == layer.key.kernel.shape == layer.value.kernel.shape == (10, 21) and layer.out.kernel.shape == (21, 10)
    x = RNG.normal(size=(B, L, 10)).astype(np.float32)
    y, aux = layer(x, x, np.ones((B, L, L), bool), capture=frozenset({"scores", "values"}))
    assert y.shape == (B, L, 10) and aux["values"].shape == (B, L, 3, 7)
    q, k = (np.asarray(p(x)).reshape(B, L, 3, 7) for p in (layer.query, layer.key))
    np.testing.assert_allclose(aux["scores"], np.einsum("blhk,bmhk->bhlm", q, k) / 7**0.5, atol=1e-5)


def test_unscaled_scores_have_the_factor_in_the_initial_query():
    scaled, bare = (Attention(12, 3, scaled=s, init="fan_in", key=jax.random.key(0)) for s in (True, False))
    x, see = RNG.normal(size=(B, L, 12)).astype(np.float32), np.ones((B, L, L), bool)
    a, b = (layer(x, x, see, capture=frozenset({"scores"}))[1]["scores"] for layer in (scaled, bare))
    np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(bare.query.kernel[...] * 2, scaled.query.kernel[...], rtol=1e-6)
    np.testing.assert_array_equal(bare.key.kernel[...], scaled.key.kernel[...])


def test_gradients_are_torchs_and_one_square_array_is_kept_for_them():
    key, dy = Key(jax.random.key(1), jnp.arange(B)), RNG.normal(size=Q.shape).astype(np.float32)
    _, pull = jax.vjp(lambda q, k, v: attention(q, k, v, SEE)[0], Q, KEYS, V)
    t = [torch.from_numpy(np.swapaxes(x, 1, 2).copy()).requires_grad_() for x in (Q, KEYS, V)]
    y = torch.nn.functional.scaled_dot_product_attention(*t, attn_mask=torch.from_numpy(SEE[:, None].repeat(H, 1)), scale=1.0)
    y.backward(torch.from_numpy(np.swapaxes(dy, 1, 2).copy()))
    for ours, theirs in zip(pull(jnp.asarray(dy)), t):
        np.testing.assert_allclose(ours, theirs.grad.transpose(1, 2).numpy(), atol=3e-6)
    _, pull = jax.vjp(lambda q, k, v: attention(q, k, v, SEE, rate=0.3, key=key)[0], Q, KEYS, V)
    assert [x.shape for x in jax.tree.leaves(pull)].count((B, H, L, M)) == 1


def test_a_key_that_is_hidden_has_no_effect_whatever_it_is():
    see = SEE.copy()
    see[:, :, 2] = False
    for odd in (np.nan, np.inf, -np.inf, 3e9):
        keys = KEYS.copy()
        keys[:, 2] = odd
        found, pull = jax.vjp(lambda q, k: attention(q, k, V, see)[0], Q, keys)
        np.testing.assert_allclose(found, attention(Q, KEYS, V, see)[0], rtol=1e-6)
        assert np.isfinite(pull(found)[1]).all() and not np.asarray(pull(found)[1])[:, 2].any()
