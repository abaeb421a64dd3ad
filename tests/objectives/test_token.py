import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptmjax.models.network import Encoded
from ptmjax.objectives.token import Mlm, Sentence
from ptmjax.types import UserError, cross_entropy, slots

RNG = np.random.default_rng(0)
SCORES = RNG.normal(0, 2, (3, 6, 9)).astype(np.float32)
BATCH = {"targets": jnp.asarray(RNG.integers(0, 9, (3, 6))), "weights": jnp.array([[0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0.5, 0, 0, 0, 2.0]]),
         "label": jnp.array([1, 0, 2]), "row_weights": jnp.array([1.0, 1.0, 0.0])}


class Net:
    """A network whose head gives the state itself."""

    def head(self, name, h):
        return h

    def nll(self, name, h, targets, where=None):
        return cross_entropy(h if where is None else where.take(h), targets)


def means(term, batch=BATCH, state=SCORES):
    sums, metrics = term.losses(Net(), Encoded(state, None, []), batch, None)
    assert {n: float(s.weight) for n, s in sums.items()} == {n: float(w) for n, w in term.weights(batch).items()}
    return {n: float(s.mean()) for n, s in (sums | metrics).items()}


def test_mlm_is_the_weighted_mean_over_scored_positions():
    log = np.asarray(SCORES - np.log(np.exp(SCORES).sum(-1, keepdims=True)))
    at, w = np.take_along_axis(log, np.asarray(BATCH["targets"])[..., None], -1)[..., 0], np.asarray(BATCH["weights"])
    hit = SCORES.argmax(-1) == np.asarray(BATCH["targets"])
    for k in (3, 4, 6, 10):
        assert means(Mlm(k)) == pytest.approx({"mlm": -(at * w).sum() / 5.5, "accuracy": (hit * w).sum() / 5.5, "overflow": 0.0}, rel=1e-5)


def test_overflow_is_counted_and_promised_alike():
    """Row 2 has three scored positions for two slots: the last, of weight 2, is lost from sum and denominator."""
    found = means(Mlm(2))
    assert found["overflow"] == pytest.approx(1 / 5)
    cut = BATCH | {"weights": BATCH["weights"].at[2, 5].set(0)}
    assert found["mlm"] == pytest.approx(means(Mlm(2), cut)["mlm"], rel=1e-6)


def test_nothing_scored_is_zero():
    assert means(Mlm(3), BATCH | {"weights": jnp.zeros((3, 6))}) == {"mlm": 0.0, "accuracy": 0.0, "overflow": 0.0}
    assert means(Sentence(), BATCH | {"row_weights": jnp.zeros(3)}, SCORES[:, 0, :2]) == {"nsp": 0.0, "nsp_accuracy": 0.0, "nsp_recall_0": 0.0, "nsp_recall_1": 0.0}


def test_targets_are_read_only_where_scored():
    other = BATCH | {"targets": jnp.where(BATCH["weights"] > 0, BATCH["targets"], 8 - BATCH["targets"])}
    assert means(Mlm(3), other) == means(Mlm(3))


def test_sentence_skips_rows_that_fill_up_a_batch():
    batch, scores = BATCH | {"label": jnp.array([1, 0, 1])}, SCORES[:, 0, :2]
    found, first = means(Sentence("sop"), batch, scores), means(Sentence("sop"), {n: x[:2] for n, x in batch.items()}, scores[:2])
    assert found == pytest.approx(first, rel=1e-6) and set(found) == {"sop", "sop_accuracy", "sop_recall_0", "sop_recall_1"}
    log = scores[:2] - np.log(np.exp(scores[:2]).sum(-1, keepdims=True))
    assert found["sop"] == pytest.approx(-(log[0, 1] + log[1, 0]) / 2, rel=1e-5)


@pytest.mark.parametrize("state, classes", [(SCORES[:, 0, :1], 2), (SCORES[:, 0, :2], 3), (SCORES[:, 0, :3], 2), (SCORES[:, :, :2], 2)])
def test_sentence_wants_a_head_of_its_classes_at_the_first_position(state, classes):
    """A label beyond the head's classes would be a loss of NaN, a class beyond the labels one that nobody learns."""
    with pytest.raises(UserError, match=rf"head 'nsp' gives scores of shape .*, its loss reads \(3, {classes}\): .*Classifier.classes") as e:
        means(Sentence(classes=classes), state=state)
    assert "\n" not in str(e.value)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=7, max_size=7), min_size=1, max_size=4), st.integers(1, 9))
def test_slots_hold_the_first_k_scored_positions_in_order(weights, k):
    w = np.array(weights, np.float32)
    at = slots(jnp.asarray(w), k)
    for row, where, weight in zip(w, np.asarray(at.where), np.asarray(at.weight)):
        scored = np.flatnonzero(row)[:k]
        np.testing.assert_array_equal(where[:len(scored)], scored)
        np.testing.assert_array_equal(weight, np.pad(row[scored], (0, len(weight) - len(scored))))
    assert int(at.overflow) == np.maximum((w > 0).sum(1) - k, 0).sum()
