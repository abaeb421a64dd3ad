import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.models.network import Encoded
from ptmjax.objectives.rtd import Rtd, detection, put
from ptmjax.types import Key, Keys, slots
from tests.models.bert import VOCAB, batch, wild
from tests.models.electra import electra

SLOTS = 6


class Fixed:
    """A generator that always names `words` [B, K], and a discriminator that notes what it is shown and gives `scores` [B, L]."""

    def __init__(self, words=None, scores=None):
        self.words, self.scores = words, scores

    def encode(self, batch, key=None):
        self.shown = batch["tokens"]
        return Encoded(None, None, [])

    def head(self, name, h, where=None):
        return 1e4 * jax.nn.one_hot(self.words, 10) if name == "mlm" else self.scores[..., None]


def told(words, targets, weights, scores, tokens=None, segments=None, k=2):
    b = {"targets": jnp.array(targets), "weights": jnp.array(weights, jnp.float32), "segments": jnp.array(segments or np.ones_like(targets)),
         "tokens": jnp.array(tokens or np.where(np.array(weights) > 0, 9, targets))}
    nets = {"generator": Fixed(jnp.array(words)), "discriminator": Fixed(scores=jnp.array(scores, jnp.float32))}
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
    assert found["generator_accuracy"] == 0.5 and found["overflow"] == 0


def test_a_scored_position_without_a_slot_shows_the_original_and_is_counted():
    shown, found = told([[1, 2]], [[5, 6, 7, 8]], [[1, 0, 1, 1]], [[0, 0, 0, 0]])
    assert shown.tolist() == [[1, 6, 2, 8]] and found["overflow"] == pytest.approx(1 / 3)


def test_an_empty_slot_writes_nothing():
    at = slots(jnp.array([[0, 1, 0], [0, 0, 0.0]]), 2)
    assert put(jnp.array([[5, 6, 7], [5, 6, 7]]), at, jnp.array([[1, 2], [3, 4]])).tolist() == [[5, 1, 7], [5, 6, 7]]


def test_detection_is_ratios_of_sums():
    rng = np.random.default_rng(0)
    found, label, w = rng.random((4, 50)) < 0.4, rng.random((4, 50)) < 0.3, (rng.random((4, 50)) < 0.8).astype(np.float32)
    count = lambda x: (x * w).sum()
    got = {n: float(s.mean()) for n, s in detection(jnp.asarray(found), jnp.asarray(label, jnp.float32), jnp.asarray(w)).items()}
    p, r = count(found & label) / count(found), count(found & label) / count(label)
    assert got == pytest.approx({"rtd_accuracy": count(found == label) / w.sum(), "precision": p, "recall": r, "f1": 2 * p * r / (p + r)}, rel=1e-6)
    nothing = detection(jnp.zeros((1, 2), bool), jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    assert {float(s.mean()) for s in nothing.values()} == {0.0}


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
        nets = {"generator": Law(), "discriminator": Fixed(scores=jnp.zeros((len(numbers), 1)))}
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
