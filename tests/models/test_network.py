"""What must hold of whole networks: padding, packing, causality, cross attention, dropout, compute type."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ptmjax.models.context import Context
from ptmjax.models.embedders import Embedder, Positions, Table
from ptmjax.models.heads import VocabularyHead
from ptmjax.models.network import Network
from ptmjax.nn import masks
from ptmjax.nn.block import Block
from ptmjax.nn.linear import Linear
from ptmjax.nn.stack import Stack
from ptmjax.training.build import Build
from ptmjax.types import Key, Keys, UserError, slots
from tests.models.bert import VOCAB, batch, bert, off, pretraining, wild

part = functools.partial


@functools.cache
def made(see=masks.full, rate=0.0):
    build = bert(see=see, rate=rate, layers=2)
    params = wild(build)
    return build, params, build.nets(params)["model"]


@functools.cache
def scorer(see):
    net = made(see)[2]
    return jax.jit(lambda b: net.head("mlm", net.encode(b).state))


def run(see, b):
    """MLM logits [B, L, V']."""
    return scorer(see)(b)


def losses(b, slots=6):
    build, params, _ = made()
    sums, _, metrics = pretraining(slots).losses(build.nets(params), b, Keys(None, Key(jax.random.key(0), b["index"])), jnp.int32(0), {})
    return {name: float(s.mean()) for name, s in (sums | metrics).items()}


def wider(b, columns, garbage):
    """The batch with columns of padding that hold `garbage` tokens."""
    fill = lambda name: garbage if name in ("tokens", "targets") else 0
    return {name: jnp.pad(x, ((0, 0), (0, columns)), constant_values=fill(name)) if x.ndim == 2 else x for name, x in b.items()}


@pytest.mark.parametrize("garbage", [0, 77])
def test_padding_has_no_effect(garbage):
    b = batch()
    real = np.asarray(b["segments"]) > 0
    more = wider(b, 13, garbage)
    assert off(np.asarray(run(masks.full, more))[:, :19][real], np.asarray(run(masks.full, b))[real]) < 1e-6
    assert losses(more) == pytest.approx(losses(b), rel=1e-6)
    assert losses(more, slots=19) == pytest.approx(losses(b), rel=1e-6)  # empty slots neither


def test_packed_equals_unpacked():
    """Two examples in a row, positions restarting, against each in its own row."""
    rng = np.random.default_rng(0)
    t, a, n = jnp.asarray(rng.integers(5, VOCAB, (1, 17)), jnp.int32), 7, 17
    count = lambda n: np.arange(n)[None]
    row = lambda t, s, p: {"tokens": t, "segments": jnp.asarray(s, jnp.int32), "positions": jnp.asarray(p, jnp.int32), "types": t % 3}
    packed = row(t, 1 + (count(n) >= a), np.where(count(n) >= a, count(n) - a, count(n)))
    for see in (masks.full, masks.causal):
        whole = run(see, packed)
        first, second = run(see, row(t[:, :a], 1 + 0 * count(a), count(a))), run(see, row(t[:, a:], 1 + 0 * count(n - a), count(n - a)))
        assert off(whole[:, :a], first) < 1e-5 and off(whole[:, a:], second) < 1e-5


def test_masks_hold_through_the_network():
    """A changed token moves what may see it, and nothing else."""
    b = batch(rows=1, length=12)
    b["segments"] = jnp.ones((1, 12), jnp.int32)
    for see in (masks.full, masks.causal, masks.own):
        allowed = np.asarray(see(b).dense())[0]
        for j in (0, 5, 11):
            other = b | {"tokens": b["tokens"].at[0, j].set(99)}
            moved = np.abs(np.asarray(run(see, other) - run(see, b))[0]).max(-1)
            assert (moved[~allowed[:, j]] == 0).all() and (moved[allowed[:, j]] > 1e-3).all(), (see.__name__, j)


def test_causal_has_no_gradient_from_the_future():
    class Soft(nnx.Module):
        def __init__(self, *, key):
            self.linear = Linear(6, 24, (None, "embed"), init=1.0, key=key)

        def __call__(self, batch):
            return self.linear(batch["tokens"])

    block = part(Block, 24, 3, 40, init=0.5)
    net = Network(part(Embedder, {"x": Soft}, 24), part(Context, masks.causal), part(Stack, [(block, 2)]), key=jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 6)), jnp.float32)
    mix = jnp.asarray(np.random.default_rng(1).normal(size=(24,)), jnp.float32)
    seen = jax.jacobian(lambda x: net.encode({"tokens": x, "segments": jnp.ones((1, 8), int)}).state[0] @ mix)(x)[:, 0]  # [query, key, 6]
    strength = np.abs(np.asarray(seen)).max(-1)
    assert (strength[np.triu_indices(8, 1)] == 0).all() and (strength[np.tril_indices(8)] > 1e-4).all()


def translator(rate=0.0):
    """Encoder and decoder with cross attention."""
    embedder = part(Embedder, {"tokens": part(Table, "tokens", VOCAB, 24, init=1.0), "positions": part(Positions, 30, 24, init=1.0)}, 24, rate=rate)
    block = part(Block, 24, 3, 40, init=0.3, rate=rate)
    decoder = part(Network, embedder, part(Context, masks.causal), part(Stack, [(part(block, cross=True), 2)]))
    net = part(Network, embedder, Context, part(Stack, [(block, 1)]), {"lm": part(VocabularyHead, VOCAB, 24, init=0.3)}, decoder=decoder)
    build = Build({"model": net})
    return build, build.init(jax.random.key(0))


@functools.cache
def decoded():
    build, params = translator()

    @jax.jit
    def f(b):
        net = build.nets(params)["model"]
        return net.head("lm", net.decode(b, net.encode(b).state).state)

    return f


def pair(rng, source, target, s=None, d=None):
    at = lambda s: jnp.asarray(np.concatenate([np.arange((s == i).sum()) for i in np.unique(s)])[None], jnp.int32)
    s, d = np.ones(source, int) if s is None else s, np.ones(target, int) if d is None else d
    draw = lambda n: jnp.asarray(rng.integers(5, VOCAB, (1, n)), jnp.int32)
    seg = lambda s: jnp.asarray(s[None], jnp.int32)
    return {"tokens": draw(source), "segments": seg(s), "positions": at(s),
            "decoder_tokens": draw(target), "decoder_segments": seg(d), "decoder_positions": at(d)}


def test_cross_attention_uses_the_encoders_segments():
    """Packed pairs equal the unpacked ones: encoder, decoder and cross attention."""
    a, b = np.repeat([1, 2], [4, 6]), np.repeat([1, 2], [5, 3])
    packed = pair(np.random.default_rng(0), 10, 8, a, b)
    whole = decoded()(packed)
    for n in (1, 2):
        keep = {name: x[:, (b if name.startswith("decoder_") else a) == n] for name, x in packed.items()}
        one = keep | {name: jnp.ones_like(x) for name, x in keep.items() if name.endswith("segments")}
        assert off(whole[:, b == n], decoded()(one)) < 1e-5


def test_the_decoder_sees_all_of_the_encoder_but_no_future():
    b = pair(np.random.default_rng(1), 6, 7)
    base = decoded()(b)
    moved = lambda other: np.abs(np.asarray(decoded()(other) - base)[0]).max(-1)
    assert (moved(b | {"tokens": b["tokens"].at[0, 5].set(9)}) > 1e-4).all()
    late = moved(b | {"decoder_tokens": b["decoder_tokens"].at[0, 4].set(9)})
    assert (late[:4] == 0).all() and (late[4:] > 1e-4).all()
    padded = b | {"segments": b["segments"].at[0, 5].set(0)}
    np.testing.assert_array_equal(decoded()(padded), decoded()(padded | {"tokens": b["tokens"].at[0, 5].set(9)}))


def test_a_network_without_decoder_says_so():
    net, b = made()[2], batch()
    with pytest.raises(UserError, match="asks for a decoder and the network has none: give Network.decoder"):
        net.decode(b, net.encode(b).state)


def test_dropout_goes_with_the_row_and_none_switches_it_off():
    build, params, _ = made(rate=0.3)
    b = batch()
    f = jax.jit(lambda b, rows: build.nets(params)["model"].encode(b, Key(jax.random.key(5), rows)).state)
    whole, real = np.asarray(f(b, jnp.arange(8))), np.asarray(b["segments"]) > 0
    for rows in (np.arange(0, 8, 2), np.arange(1, 8, 2)):
        some = f({name: x[rows] for name, x in b.items()}, jnp.asarray(rows, jnp.int32))
        assert off(np.asarray(some)[real[rows]], whole[rows][real[rows]]) < 1e-6
    assert np.abs(np.asarray(f(b, jnp.arange(8) + 8)) - whole).max() > 0.1
    net = build.nets(params)["model"]
    np.testing.assert_array_equal(net.encode(b).state, made()[2].encode(b).state)


def test_encoder_and_decoder_draw_their_own_dropout():
    build, params = translator(rate=0.5)
    net, b = build.nets(params)["model"], pair(np.random.default_rng(0), 6, 6)
    net.decoder.embedder = net.embedder
    side = {name: b[f"decoder_{name}"] for name in ("tokens", "segments", "positions")}
    key = Key(jax.random.key(0), jnp.arange(1))
    one, two = net.embedder(side, key.fold("embedder")), net.decoder.embedder(side, key.fold("decoder").fold("embedder"))
    assert ((np.asarray(one) == 0) != (np.asarray(two) == 0)).mean() > 0.3


def test_bfloat16_is_near_float32():
    b, scored = batch(), slots(batch()["weights"], 4)
    half = bert(compute="bfloat16", layers=2)
    params = half.init(jax.random.key(0))
    logits = [np.asarray(net.head("mlm", net.encode(b).state, scored)[..., :VOCAB], np.float32)
              for net in (half.nets(params)["model"], bert(layers=2).nets(params)["model"])]
    assert half.nets(params)["model"].encode(b).state.dtype == jnp.bfloat16
    assert 1e-5 < off(*logits) < 0.03


def test_a_projection_lies_between_embedder_and_stack():
    embedder = part(Embedder, {"tokens": part(Table, "tokens", VOCAB, 8)}, 8)
    net = Network(embedder, Context, part(Stack, [(part(Block, 24, 3, 40), 1)]), project=part(Linear, 8, 24, (None, "embed")), key=jax.random.key(0))
    b = batch()
    np.testing.assert_allclose(net.encode(b).state, net.stack(net.project(net.embedder(b, None)), net.context(b))[0], atol=1e-6)


def test_without_a_stack_the_state_is_the_embedders():
    net = Network(part(Embedder, {"tokens": part(Table, "tokens", VOCAB, 8)}, 8), key=jax.random.key(0))
    out = net.encode(batch(), memory={"x": 1})
    np.testing.assert_array_equal(out.state, net.embedder(batch(), None))
    assert out.memory == {"x": 1} and out.aux == []
