import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.models.network import Encoded
from ptmjax.objectives.rtd import Rtd, area, detection, put
from ptmjax.types import Key, Keys, UserError, slots
from tests.models.bert import VOCAB, batch, wild
from tests.models.electra import electra

SLOTS = 6


class Fixed:
    """A generator that always names `words` [B, K], and a discriminator that notes what it is shown and gives `scores` [B, L, 1]."""

    def __init__(self, words=None, scores=None):
        self.words, self.scores = words, scores

    def encode(self, batch, key=None):
        self.shown = batch["tokens"]
        return Encoded(None, None, [])

    def head(self, name, h, where=None):
        return 1e4 * jax.nn.one_hot(self.words, 10) if name == "mlm" else self.scores


def told(words, targets, weights, scores, tokens=None, segments=None, k=2):
    b = {"targets": jnp.array(targets), "weights": jnp.array(weights, jnp.float32), "segments": jnp.array(segments or np.ones_like(targets)),
         "tokens": jnp.array(tokens or np.where(np.array(weights) > 0, 9, targets))}
    nets = {"generator": Fixed(jnp.array(words)), "discriminator": Fixed(scores=jnp.array(scores, jnp.float32)[..., None])}
    keys = Keys(None, Key(jax.random.key(0), jnp.arange(len(targets))))
    objective = Rtd(k)
    sums, _, metrics = objective.losses(nets, b, keys, 0, {})
    assert {n: float(s.weight) for n, s in sums.items()} == {n: float(w) for n, w in objective.weights(b).items()}
    return nets["discriminator"].shown, {n: float(s.mean()) for n, s in (sums | metrics).items()}


def test_replaced_is_what_differs_from_the_original():
    """Original 5 6 7 8, scored 1 and 3, samples 6 and 9: only the last is replaced; the pad is neither learnt nor counted."""
    shown, found = told([[6, 9]], [[5, 6, 7, 8, 0]], [[0, 1, 0, 1, 0]], [[-1, 2, -3, 4, 50.0]], segments=[[1, 1, 1, 1, 0]])
    assert shown.tolist() == [[5, 6, 7, 9, 0]]
    want = np.log1p(np.exp([-1, 2, -3, -4])).mean()  # labels 0 0 0 1
    assert found["rtd"] == pytest.approx(want, rel=1e-5) and found["replaced"] == 0.25
    assert (found["rtd_accuracy"], found["precision"], found["recall"]) == (0.75, 0.5, 1.0) and found["f1"] == pytest.approx(2 / 3)
    assert found["generator_accuracy"] == 0.5 and found["overflow"] == 0 and found["auc"] == 1
    assert Rtd(2).total({"mlm": 2.0, "rtd": 0.1}) == pytest.approx(7.0)  # the generator's loss and 50 times the discriminator's


def test_a_scored_position_without_a_slot_shows_the_original_and_is_counted():
    shown, found = told([[1, 2]], [[5, 6, 7, 8]], [[1, 0, 1, 1]], [[0, 0, 0, 0]])
    assert shown.tolist() == [[1, 6, 2, 8]] and found["overflow"] == pytest.approx(1 / 3)


def test_an_empty_slot_writes_nothing():
    at = slots(jnp.array([[0, 1, 0], [0, 0, 0.0]]), 2)
    assert put(jnp.array([[5, 6, 7], [5, 6, 7]]), at, jnp.array([[1, 2], [3, 4]])).tolist() == [[5, 1, 7], [5, 6, 7]]


def test_detection_is_ratios_of_sums():
    """With any weights."""
    rng = np.random.default_rng(0)
    found, label = rng.random((4, 50)) < 0.4, rng.random((4, 50)) < 0.3
    w = rng.choice([0, 0.5, 1, 3], (4, 50)).astype(np.float32)
    count = lambda x: (x * w).sum()
    got = {n: float(s.mean()) for n, s in detection(jnp.asarray(found), jnp.asarray(label, jnp.float32), jnp.asarray(w)).items()}
    p, r = count(found & label) / count(found), count(found & label) / count(label)
    assert got == pytest.approx({"rtd_accuracy": count(found == label) / w.sum(), "precision": p, "recall": r, "f1": 2 * p * r / (p + r)}, rel=1e-6)
    nothing = detection(jnp.zeros((1, 2), bool), jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    assert {float(s.mean()) for s in nothing.values()} == {0.0}
    perfect = detection(jnp.array([[True, False]]), jnp.array([[1.0, 0.0]]), jnp.array([[0.5, 0.5]]))
    assert {float(s.mean()) for s in perfect.values()} == {1.0}


def pairs(score, label, w):
    """(won, all) over the pairs of one row, one by one."""
    won = total = 0.0
    for i, j in itertools.product(np.flatnonzero(label), np.flatnonzero(label == 0)):
        won += w[i] * w[j] * (float(score[i] > score[j]) + 0.5 * float(score[i] == score[j]))
        total += w[i] * w[j]
    return won, total


def test_the_area_is_the_share_of_pairs_of_a_row_that_are_ranked_rightly():
    """Against all pairs one by one, with ties, padding, weights, and rows without a replaced or an original token."""
    rng = np.random.default_rng(0)
    score, label = rng.integers(-4, 4, (6, 30)).astype(np.float32), (rng.random((6, 30)) < 0.3).astype(np.float32)
    label[4], label[5] = 0, 1
    w = rng.choice([0, 0.5, 1, 2], (6, 30)).astype(np.float32)
    won, total = np.sum([pairs(*row) for row in zip(score, label, w)], 0)
    got = area(jnp.asarray(score), jnp.asarray(label), jnp.asarray(w))
    assert (float(got.value), float(got.weight)) == pytest.approx((won, total), rel=1e-6)
    assert 0.3 < won / total < 0.7
    parts = [area(*(jnp.asarray(x[r::3]) for x in (score, label, w))) for r in range(3)]
    assert float(sum(parts[1:], parts[0]).mean()) == pytest.approx(won / total, rel=1e-6)


def test_the_area_of_one_row_is_that_under_its_roc_curve():
    """The trapezoids over every threshold."""
    rng = np.random.default_rng(1)
    score, label = np.round(rng.normal(size=200), 1), rng.random(200) < 0.2
    cuts = [np.inf, *np.unique(score)[::-1]]
    hits, alarms = ([(score[of] >= cut).mean() for cut in cuts] for of in (label, ~label))
    row = lambda x: jnp.asarray(x, jnp.float32)[None]
    assert float(area(row(score), row(label), row(np.ones(200))).mean()) == pytest.approx(np.trapezoid(hits, alarms), rel=1e-5)


def test_the_area_needs_no_threshold_and_keeps_rows_apart():
    """All scores below 0: F1 is 0. The second row lies above the first as a whole, which counts for nothing."""
    score, label, w = jnp.array([[-9, -8, -7.0], [-3, -1, -2.0]]), jnp.array([[0, 0, 1.0], [0, 1, 0.0]]), jnp.ones((2, 3))
    assert float(area(score, label, w).mean()) == 1 and float(detection(score > 0, label, w)["f1"].mean()) == 0
    assert float(area(jnp.zeros((2, 3)), label, w).mean()) == 0.5 and float(area(-score, label, w).mean()) == 0


@pytest.mark.parametrize("scores", [np.zeros((1, 4, 2)), np.zeros((1, 1)), np.zeros((4, 1))], ids=["two classes", "first", "as long as wide"])
def test_a_discriminator_wants_one_score_at_every_position(scores):
    """Of two classes the second would be dropped; of the first position alone the score would be that of all."""
    rows = len(scores)
    b = {"targets": jnp.full((rows, 4), 5), "tokens": jnp.full((rows, 4), 9), "weights": jnp.ones((rows, 4)), "segments": jnp.ones((rows, 4), int)}
    nets = {"generator": Fixed(jnp.full((rows, 2), 5)), "discriminator": Fixed(scores=jnp.array(scores))}
    with pytest.raises(UserError, match=rf"head 'rtd' gives scores of shape .*, its loss reads \({rows}, 4, 1\): .*Classifier.first"):
        Rtd(2).losses(nets, b, Keys(None, Key(jax.random.key(0), jnp.arange(rows))), 0, {})


@pytest.fixture(scope="module")
def system():
    build, b = electra(), batch()
    return build, b, wild(build), Keys(None, Key(jax.random.key(0), b["index"]))


def test_the_discriminators_loss_gives_the_generators_own_weights_no_gradient(system):
    build, b, params, keys = system

    def loss(params, name):
        sums, _, _ = Rtd(SLOTS).losses(build.nets(params), b, keys, 0, {})
        return sums[name].mean()

    grads = {name: jax.jit(jax.grad(loss), static_argnums=1)(params, name) for name in ("rtd", "mlm")}
    own = [n for n in params if n.startswith("generator/") and not n.startswith("generator/embedder/")]
    assert own and not any(np.asarray(grads["rtd"][n]).any() for n in own)
    for n, g in grads["rtd"].items():
        if not n.endswith("key/bias"):
            assert np.asarray(g).any() == (n not in own), n
            assert np.asarray(grads["mlm"][n]).any() == n.startswith("generator/"), n


def test_samples_follow_the_generators_law_and_the_rows_key(system):
    """Frequencies of 2000 draws against the softmax; a row's draw depends on its number alone."""
    p = np.array([0.5, 0.25, 0.125, 0.125])
    rows = 2000
    b = {"targets": jnp.full((rows, 1), 9), "tokens": jnp.zeros((rows, 1), int), "weights": jnp.ones((rows, 1)), "segments": jnp.ones((rows, 1), int)}

    class Law(Fixed):
        def head(self, name, h, where=None):
            return jnp.broadcast_to(jnp.log(jnp.asarray(p)), (len(self.shown), 1, 4))

    def drawn(numbers):
        nets = {"generator": Law(), "discriminator": Fixed(scores=jnp.zeros((len(numbers), 1, 1)))}
        Rtd(1).losses(nets, {n: x[: len(numbers)] for n, x in b.items()}, Keys(None, Key(jax.random.key(3), numbers)), 0, {})
        return np.asarray(nets["discriminator"].shown)[:, 0]

    all_ = drawn(jnp.arange(rows))
    np.testing.assert_allclose(np.bincount(all_, minlength=4) / rows, p, atol=4 * (0.25 / rows) ** 0.5)
    np.testing.assert_array_equal(drawn(jnp.arange(7, 40)), all_[7:40])


def test_padding_of_the_vocabulary_is_never_sampled(system):
    build, b, params, keys = system
    flat = params | {n: jnp.zeros_like(x) for n, x in params.items() if n.startswith("generator/heads/mlm/")}  # uniform over real entries
    generator = build.nets(flat)["generator"]
    scores = generator.head("mlm", generator.encode(b).state, slots(b["weights"], SLOTS))
    draws = np.concatenate([np.asarray(keys.sample.fold(i).each(jax.random.categorical, scores)).ravel() for i in range(20)])
    assert draws.max() < VOCAB and len(set(draws)) > VOCAB * 0.9
