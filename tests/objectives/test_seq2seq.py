import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.models.network import Encoded
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.types import Key, Keys, cross_entropy

RNG = np.random.default_rng(0)
SCORES = jnp.asarray(RNG.normal(0, 2, (3, 6, 9)), jnp.float32)
BATCH = {"targets": jnp.asarray(RNG.integers(0, 9, (3, 6))), "weights": jnp.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 0.5, 0, 0]])}


class Net:
    """An encoder-decoder whose decoder gives the scores, and which notes what it is asked for."""

    def __init__(self, scores=SCORES):
        self.scores, self.asked = scores, []

    def encode(self, batch, key=None):
        self.asked.append(("encode", key))
        return Encoded("encoded", None, [])

    def decode(self, batch, encoded, key=None):
        self.asked.append((f"decode {encoded}", key))
        return Encoded(self.scores, None, [])

    def nll(self, name, h, targets):
        self.asked.append(("nll", name))
        return cross_entropy(h, targets)


def means(objective, batch=BATCH, net=None):
    sums, carry, metrics = objective.losses({"model": net or Net()}, batch, Keys(None, None), 0, {})
    assert {n: float(s.weight) for n, s in sums.items()} == {n: float(w) for n, w in objective.weights(batch).items()} and carry == {}
    return {n: float(s.mean()) for n, s in (sums | metrics).items()}


def test_it_is_the_weighted_mean_over_all_scored_targets():
    log = np.asarray(jax.nn.log_softmax(SCORES))
    at, w = np.take_along_axis(log, np.asarray(BATCH["targets"])[..., None], -1)[..., 0], np.asarray(BATCH["weights"])
    hit = np.asarray(SCORES).argmax(-1) == np.asarray(BATCH["targets"])
    square = np.log(np.exp(np.asarray(SCORES)).sum(-1)) ** 2
    want = {"seq2seq": -(at * w).sum() / 5.5, "accuracy": (hit * w).sum() / 5.5}
    assert means(Seq2Seq(0.0)) == pytest.approx(want, rel=1e-5)
    assert means(Seq2Seq()) == pytest.approx(want | {"z_loss": (square * w).sum() / 5.5}, rel=1e-5)


def test_worked_numbers():
    """Scores 2 1 0 -1 .5: log Z = 2.57444, the cross entropy of the first .57444, 1e-4 log^2 Z = 6.628e-4."""
    batch = {"targets": jnp.array([[0]]), "weights": jnp.array([[1.0]])}
    objective, found = Seq2Seq(1e-4), means(Seq2Seq(1e-4), batch, Net(jnp.array([[[2, 1, 0, -1, 0.5]]])))
    assert found["seq2seq"] == pytest.approx(0.57444, abs=1e-5)
    assert 1e-4 * found["z_loss"] == pytest.approx(6.628e-4, abs=1e-7)
    assert float(objective.total({n: found[n] for n in ("seq2seq", "z_loss")})) == pytest.approx(0.57444 + 6.628e-4, abs=1e-5)


def test_the_gradient_of_the_z_loss_points_to_log_z_0():
    def z(scores):
        return Seq2Seq(1.0).losses({"model": Net(scores)}, BATCH, Keys(None, None), 0, {})[0]["z_loss"].value

    log_z, w = jax.nn.logsumexp(SCORES, -1), BATCH["weights"]
    np.testing.assert_allclose(jax.grad(z)(SCORES), (2 * log_z * w)[..., None] * jax.nn.softmax(SCORES), rtol=1e-4, atol=1e-6)


def test_the_heads_own_nll_is_asked_once_and_both_sides_get_the_key():
    """With the second loss too: an adaptive or chunked head has no scores to give."""
    net, key = Net(), Key(jax.random.key(0), jnp.arange(3))
    Seq2Seq(0.0, head="words").losses({"model": net}, BATCH, Keys(key, key), 0, {})
    (encode, a), (decode, b), last = net.asked
    assert (encode, decode, last) == ("encode", "decode encoded", ("nll", "words")) and a is b is not None
    net = Net()
    Seq2Seq().losses({"model": net}, BATCH, Keys(None, key), 0, {})
    assert net.asked == [("encode", None), ("decode encoded", None), ("nll", "lm")]


def test_padding_changes_nothing_and_nothing_scored_is_zero():
    wide = {n: jnp.pad(x, ((0, 0), (0, 100))) for n, x in BATCH.items()}
    assert means(Seq2Seq(), wide, Net(jnp.pad(SCORES, ((0, 0), (0, 100), (0, 0)), constant_values=7.0))) == pytest.approx(means(Seq2Seq()), rel=1e-6)
    assert set(means(Seq2Seq(), BATCH | {"weights": jnp.zeros((3, 6))}).values()) == {0.0}


def test_a_negative_coefficient_is_refused():
    with pytest.raises(ValueError, match="Seq2Seq.z is -1"):
        Seq2Seq(-1)
