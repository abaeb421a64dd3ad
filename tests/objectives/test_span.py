import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.models.network import Encoded
from ptmjax.objectives.span import Sbo
from ptmjax.types import UserError, cross_entropy

RNG = np.random.default_rng(0)
STATE = RNG.normal(0, 1, (2, 10, 4)).astype(np.float32)
# row 0: a span of 3 at 2..4, one of 1 at 7; row 1: one of 5 at 1..5
BATCH = {"targets": jnp.asarray(RNG.integers(0, 4, (2, 10))),
         "weights": jnp.array([[0, 0, 1, 1, 1, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0, 0, 0, 0]], jnp.float32),
         "left": jnp.array([[0, 0, 1, 1, 1, 0, 0, 6, 0, 0], [0] * 10]),
         "right": jnp.array([[0, 0, 5, 5, 5, 0, 0, 8, 0, 0], [0, 6, 6, 6, 6, 6, 0, 0, 0, 0]])}


class Net:
    """A head of 4 classes: states before and behind, and the place, weigh them."""

    def nll(self, name, h, targets, where=None):
        before, behind, number = h
        return cross_entropy(before + 2 * behind + number[..., None] * jnp.arange(4), targets)


def by_hand(most):
    losses = []
    for row in range(2):
        for place in np.flatnonzero(BATCH["weights"][row]):
            left, right = int(BATCH["left"][row, place]), int(BATCH["right"][row, place])
            if place - left > most:
                continue
            scores = STATE[row, left] + 2 * STATE[row, right] + (place - left - 1) * np.arange(4)
            losses.append(np.log(np.exp(scores).sum()) - scores[int(BATCH["targets"][row, place])])
    return losses


@pytest.mark.parametrize("most", [20, 3, 1])
@pytest.mark.parametrize("slots", [5, 8])
def test_sbo_reads_the_places_around_the_span(most, slots):
    sums, metrics = (term := Sbo(slots, most)).losses(Net(), Encoded(STATE, None, []), BATCH, None)
    wanted = by_hand(most)
    assert float(sums["sbo"].value) == pytest.approx(sum(wanted), rel=1e-5)
    assert float(sums["sbo"].weight) == float(term.weights(BATCH)["sbo"]) == len(wanted) == {20: 9, 3: 7, 1: 3}[most]
    assert set(metrics) == {"sbo_accuracy"}


def test_what_lies_inside_a_span_is_not_read():
    inside = np.array(BATCH["weights"])[..., None] > 0
    found = [Sbo(5).losses(Net(), Encoded(np.where(inside, other, STATE), None, []), BATCH, None)[0]["sbo"].value for other in (STATE, 7.0)]
    assert float(found[0]) == float(found[1])


def test_a_task_without_boundaries_is_told():
    with pytest.raises(UserError, match="loss 'sbo' reads 'left' of a batch, which has targets, weights"):
        Sbo(5).weights({"weights": BATCH["weights"], "targets": BATCH["targets"]})
