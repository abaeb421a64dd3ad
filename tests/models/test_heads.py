import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ptmjax.models.heads import Boundary, Classifier, VocabularyHead
from ptmjax.types import cross_entropy, slots

RNG = np.random.default_rng(0)
H = RNG.normal(size=(2, 5, 6)).astype(np.float32)


def head(size=131, width=6, **options):
    made = VocabularyHead(size, width, init=1.0, key=jax.random.key(0), **options)
    if made.bias is None:
        return made
    made.bias[...] = jnp.asarray(RNG.normal(size=made.bias.shape), jnp.float32)
    return made


def test_cross_entropy_worked_number_and_hit():
    loss, hit, log_z = cross_entropy(jnp.array([[2, 1, 0, -1, 0.5], [2, 1, 0, -1, 0.5]]), jnp.array([0, 1]))
    np.testing.assert_allclose(loss, [0.57444, 1.57444], atol=1e-5)
    np.testing.assert_array_equal(hit, [1, 0])
    np.testing.assert_allclose(log_z, [2.57444, 2.57444], atol=1e-5)


def test_cross_entropy_is_torchs_and_stays_finite_at_large_scores():
    scores, targets = RNG.normal(0, 1e4, (3, 4, 7)).astype(np.float32), RNG.integers(0, 7, (3, 4))
    there = torch.nn.functional.cross_entropy(torch.from_numpy(scores).flatten(0, 1), torch.from_numpy(targets).flatten(), reduction="none")
    np.testing.assert_allclose(cross_entropy(scores, targets)[0].reshape(-1), there.numpy(), rtol=1e-5, atol=1e-3)


def test_cross_entropy_is_float32():
    scores = jnp.asarray(RNG.normal(size=(4, 1000)), jnp.bfloat16)
    loss, hit, log_z = cross_entropy(scores, jnp.arange(4))
    assert loss.dtype == hit.dtype == log_z.dtype == jnp.float32
    np.testing.assert_array_equal(loss, cross_entropy(scores.astype(jnp.float32), jnp.arange(4))[0])


def test_scores_are_the_transformed_states_on_the_table():
    h = head(act="gelu_tanh")
    t = h.norm(jax.nn.gelu(h.transform(H)))
    np.testing.assert_allclose(h(H)[..., :131], t @ h.table[...][:131].T + h.bias[...][:131], rtol=1e-5, atol=1e-5)


def test_a_head_without_transform_and_one_with_another_table_width():
    bare = head(act=None)
    np.testing.assert_allclose(bare(H)[..., :131], H @ np.asarray(bare.table[...][:131]).T + bare.bias[...][:131], rtol=1e-5, atol=1e-5)
    assert bare.transform is None and bare.norm is None
    narrow = head(embed=4)
    assert narrow.table.shape == (256, 4) and narrow(H).shape == (2, 5, 256)
    with pytest.raises(ValueError, match="act None nothing maps width 6 to a table of width 4"):
        head(act=None, embed=4)


def test_without_bias_and_scaled_by_the_root_of_the_width():
    plain, scaled = head(act=None, bias=False), head(act=None, bias=False, scaled=True)
    assert plain.bias is None
    np.testing.assert_allclose(plain(H)[..., :131], H @ np.asarray(plain.table[...][:131]).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scaled(H)[..., :131], plain(H)[..., :131] / 6**0.5, rtol=1e-5, atol=1e-5)
    c = RNG.integers(0, 131, (2, 5, 3))
    np.testing.assert_allclose(scaled(H, None, c), np.take_along_axis(np.asarray(scaled(H)), c, -1), rtol=1e-5, atol=1e-5)
    assert (np.asarray(scaled(H))[..., 131:] <= -1e9).all()


def test_the_fan_in_of_the_table_is_the_width_of_the_states():
    table = VocabularyHead(1000, 64, act=None, init="fan_in", key=jax.random.key(0)).table[...]
    assert float(table.std()) == pytest.approx(1 / 8, rel=0.02)


def test_padding_of_the_vocabulary_is_never_predicted_sampled_or_counted():
    h = head()
    h.bias[...] = h.bias[...].at[131:].set(1e6)
    scores = h(H)
    assert (np.asarray(scores).argmax(-1) < 131).all() and not np.asarray(jax.nn.softmax(scores))[..., 131:].any()
    targets = jnp.zeros((2, 5), int)
    np.testing.assert_allclose(h.nll(H, targets)[0], cross_entropy(scores[..., :131], targets)[0], rtol=1e-6)


def test_slots_give_the_scores_of_their_places():
    h, at = head(), slots(jnp.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 1.0]]), 2)
    whole = np.asarray(h(H))
    part = np.asarray(h(H, at))
    np.testing.assert_allclose(part[0], whole[0, [1, 3]], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(part[1, 0], whole[1, 4], rtol=1e-5, atol=1e-5)
    loss, hit, log_z = h.nll(H, jnp.array([[3, 4], [5, 0]]), at)
    np.testing.assert_allclose(loss, cross_entropy(part, jnp.array([[3, 4], [5, 0]]))[0], rtol=1e-5)
    np.testing.assert_allclose(log_z, jax.nn.logsumexp(part, -1), rtol=1e-5)
    assert hit.shape == (2, 2)


def test_candidates_give_the_scores_of_their_entries():
    h, c = head(), RNG.integers(0, 131, (2, 5, 3))
    np.testing.assert_allclose(h(H, None, c), np.take_along_axis(np.asarray(h(H)), c, -1), rtol=1e-5, atol=1e-5)


def test_the_classifier_reads_the_first_position_or_every_one():
    first = Classifier(3, 6, init=1.0, key=jax.random.key(0))
    every = Classifier(3, 6, first=False, act="gelu", init=1.0, key=jax.random.key(0))
    np.testing.assert_allclose(first(H), first.out(jnp.tanh(first.dense(H[:, 0]))), rtol=1e-6)
    np.testing.assert_allclose(every(H), every.out(jax.nn.gelu(every.dense(H), approximate=False)), rtol=1e-5, atol=1e-5)
    at = slots(jnp.array([[0, 1, 0, 1, 0], [1, 0, 0, 0, 1.0]]), 2)
    np.testing.assert_allclose(every(H, at)[0], every(H)[0, [1, 3]], rtol=1e-5, atol=1e-5)
    loss, _, _ = first.nll(H, jnp.array([0, 2]))
    np.testing.assert_allclose(loss, -jax.nn.log_softmax(first(H))[jnp.arange(2), jnp.array([0, 2])], rtol=1e-5, atol=1e-6)


def test_a_misspelt_activation_names_the_choices():
    for make in (lambda: head(act="gleu"), lambda: Classifier(2, 6, act="tan", key=jax.random.key(0))):
        with pytest.raises(ValueError, match="it may be one of"):
            make()


def test_boundary_is_two_layers_over_both_sides_and_the_place():
    """SpanBERT's head against its formula in torch: [before; behind; place] -> dense, gelu, norm, twice, then the table and bias."""
    net = Boundary(11, 6, most=3, place=4, init=1.0, key=jax.random.key(1))
    for leaf in (net.first.bias, net.second.bias, net.words.bias, net.first_norm.scale, net.second_norm.bias):
        leaf[...] = jnp.asarray(RNG.normal(size=leaf.shape), jnp.float32)
    before, behind = H[:, :3], H[:, 2:]
    number = np.array([[0, 1, 2], [2, 5, 0]])  # a place beyond the table is its last
    t = lambda x: torch.from_numpy(np.array(x))
    x = torch.cat([t(before), t(behind), t(net.places[...])[torch.from_numpy(np.minimum(number, 2))]], -1)
    for linear, norm in ((net.first, net.first_norm), (net.second, net.second_norm)):
        x = torch.nn.functional.gelu(x @ t(linear.kernel[...]) + t(linear.bias[...]))
        x = torch.nn.functional.layer_norm(x, (6,), t(norm.scale[...]), t(norm.bias[...]), 1e-12)
    wanted = x @ t(net.words.table[...]).T + t(net.words.bias[...])
    found = net((jnp.asarray(before), jnp.asarray(behind), jnp.asarray(number)))
    assert found.shape == (2, 3, 128) and (found[..., 11:] < -1e8).all()
    np.testing.assert_allclose(found[..., :11], wanted[..., :11].numpy(), rtol=1e-4, atol=1e-4)
