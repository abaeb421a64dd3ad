"""Learning rates: against transformers', optax's and numbers by hand, and what holds of all of them."""
import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers
from hypothesis import given, settings

from ptmjax.training.optimizer import AdamW
from ptmjax.training.schedules import Unended, constant, cosine, ended, linear, rsqrt, warmup_steps
from ptmjax.types import UserError

at = lambda schedule, step: float(schedule(jnp.int32(step)))


@pytest.mark.parametrize("warmup, steps", [(0, 10), (1, 10), (4, 10), (9, 10)])
@pytest.mark.parametrize("ours, theirs", [(linear, transformers.get_linear_schedule_with_warmup), (cosine, transformers.get_cosine_schedule_with_warmup)])
def test_linear_and_cosine_are_transformers(ours, theirs, warmup, steps):
    tx = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    there, schedule = theirs(tx, warmup, steps), ours(3e-4, warmup, steps)
    for s in range(steps + 1):  # transformers' cosine rises again beyond its last step
        assert at(schedule, s) == pytest.approx(there.get_last_lr()[0], rel=1e-5, abs=1e-10), s
        assert AdamW(schedule).rate(s) == at(schedule, s)
        tx.step()
        there.step()
    assert at(schedule, steps) == at(schedule, steps + 7) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("steps", [10, 1_000_000, 50_000_001])
@pytest.mark.parametrize("schedule", [linear, cosine])
def test_the_last_step_of_any_length_has_a_rate_and_none_follows(schedule, steps):
    """In float32, 1 - (n - 1) / n and 1 + cos(pi (n - 1) / n) are 0 for large n."""
    peak, warmup = 1e-3, 5
    n = steps - warmup
    ours, left = schedule(peak, warmup, steps), [3 / n, 1 / n, 0.0]
    wanted = [peak * (x if schedule is linear else math.sin(math.pi / 2 * x) ** 2) for x in left]
    assert [at(ours, steps - 3), at(ours, steps - 1), at(ours, steps)] == pytest.approx(wanted, rel=1e-5)
    assert at(ours, steps - 1) > 0 == at(ours, steps + 1)


def test_cosine_is_optax_with_a_final_share():
    ours, theirs = cosine(0.3, 5, 45, 0.1), optax.schedules.warmup_cosine_decay_schedule(0, 0.3, 5, 45, 0.03)
    for s in (0, 1, 4, 5, 6, 25, 44, 45, 46, 1000):
        assert at(ours, s) == pytest.approx(float(theirs(s)), rel=1e-6), s
    assert [at(ours, s) for s in (0, 5, 25, 45, 99)] == pytest.approx([0, 0.3, 0.165, 0.03, 0.03], rel=1e-5)


def test_rsqrt_as_it_stands_is_t5s():
    for s in (0, 1, 5000, 10_000, 10_001, 40_000, 2**19, 10**7):
        assert at(rsqrt(), s) == pytest.approx(1 / math.sqrt(max(s, 1e4)), rel=1e-6), s
        assert at(rsqrt(1e-3, 100), s) == pytest.approx(1e-3 * math.sqrt(100 / max(s, 100)), rel=1e-6), s


def test_rsqrt_with_a_rise_is_vaswanis():
    """d^-.5 min(step^-.5, step warmup^-1.5), with its peak at the warm-up's end."""
    d, warmup = 512, 4000
    ours = rsqrt(d**-0.5 * warmup**-0.5, warmup, rise=True)
    for s in (1, 2, 1000, 3999, 4000, 4001, 100_000):
        assert at(ours, s) == pytest.approx(d**-0.5 * min(s**-0.5, s * warmup**-1.5), rel=1e-5), s
    assert at(ours, 0) == 0


def test_constant_keeps_its_rate():
    assert [at(constant(0.5), s) for s in (0, 1, 10**6)] == [0.5] * 3
    assert [at(constant(0.5, 4), s) for s in (0, 1, 3, 4, 5, 10**6)] == pytest.approx([0, 0.125, 0.375, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("warmup, steps, n", [(0, 10, 0), (3, 10, 3), (0.3, 10, 3), (0.05, 2000, 100), (0.01, 10, 0), (7, None, 7)])
def test_a_warmup_is_a_number_of_steps_or_a_share(warmup, steps, n):
    assert warmup_steps(warmup, steps) == n


def test_a_share_means_the_same_everywhere():
    for share, steps in ((linear(0.1, 0.1, 50), linear(0.1, 5, 50)), (cosine(0.1, 0.1, 50), cosine(0.1, 5, 50)),
                         (constant(0.1, 0.1, 50), constant(0.1, 5)), (rsqrt(0.1, 0.1, 50), rsqrt(0.1, 5)),
                         (rsqrt(0.1, 0.1, 50, rise=True), rsqrt(0.1, 5, rise=True))):
        for s in (0, 2, 5, 30, 50, 60):
            assert at(share, s) == at(steps, s)


@pytest.mark.parametrize("warmup, steps", [(10, 10), (11, 10), (-1, 10), (0, 0)])
@pytest.mark.parametrize("schedule", [linear, cosine, constant, rsqrt])
def test_a_warmup_that_does_not_fit_is_a_user_error(schedule, warmup, steps):
    with pytest.raises(UserError, match=f"warm-up of {warmup} steps does not fit into {steps}"):
        schedule(1e-3, warmup, steps)


@pytest.mark.parametrize("make, words", [
    (lambda: constant(0.1, -3), "a warm-up of -3 steps"), (lambda: constant(0.1, math.inf), "a warm-up of inf steps"),
    (lambda: rsqrt(warmup=0), "warmup is 0; it must be at least 1"), (lambda: linear(0.0, 1, 5), "peak is 0.0; it must be above 0"),
    (lambda: cosine(-1.0, 1, 5), "peak is -1.0"), (lambda: constant(math.inf), "peak is inf"), (lambda: rsqrt(math.nan), "peak is nan"),
    (lambda: cosine(0.1, 1, 5, 1.5), "final share .* is 1.5"), (lambda: cosine(0.1, 1, 5, -0.5), "final share .* is -0.5")])
def test_what_makes_no_schedule_is_a_user_error(make, words):
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize("make", [
    lambda steps=None: linear(0.1, 5, steps), lambda steps=None: linear(0.1, 0.1, steps), lambda steps=None: cosine(0.1, 5, steps, 0.2),
    lambda steps=None: constant(0.1, 0.1, steps), lambda steps=None: rsqrt(0.1, 0.1, steps), lambda steps=None: rsqrt(0.1, 0.1, steps, rise=True)])
def test_without_steps_of_its_own_a_schedule_has_those_of_the_run(make):
    open_end, own = make(), make(50)
    assert isinstance(open_end, Unended) and ended(own, 80) is ended(own, None) is own
    for s in (0, 2, 5, 30, 49, 50, 60):
        assert at(ended(open_end, 50), s) == at(own, s) == AdamW(open_end).rate(s, 50) == AdamW(own).rate(s, 80)
    assert any(at(ended(open_end, 80), s) != at(own, s) for s in (2, 30))
    with pytest.raises(UserError, match="ends with the run, whose steps are not told"):
        AdamW(open_end).rate(0)


def test_a_schedule_that_needs_no_steps_is_one_without_them():
    assert not any(isinstance(s, Unended) for s in (constant(0.1), constant(0.1, 7), rsqrt(), rsqrt(0.1, 7, rise=True)))


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_warmup_that_does_not_fit_the_run_is_a_user_error(schedule):
    with pytest.raises(UserError, match="warm-up of 10 steps does not fit into 10 steps: shorten it"):
        ended(schedule(1e-3, 10), 10)
    with pytest.raises(UserError, match="peak is -1.0"):
        schedule(-1.0, 10)


@settings(max_examples=50)
@given(st.floats(1e-6, 10), st.integers(2, 3000), st.data())
def test_rates_are_finite_between_0_and_the_peak_and_fall_after_the_warmup(peak, steps, data):
    warmup, final = data.draw(st.integers(1, steps - 1)), data.draw(st.floats(0, 1))
    others = data.draw(st.lists(st.integers(0, 2 * steps), min_size=11, max_size=11))  # always 16, so that all is compiled once
    where = np.sort([0, warmup, steps - 1, steps, 2 * steps, *others]).astype(np.int32)
    for schedule in (linear(peak, warmup, steps), cosine(peak, warmup, steps, final), constant(peak, warmup), rsqrt(peak, warmup),
                     rsqrt(peak, warmup, rise=True)):
        rates = np.asarray(schedule(jnp.asarray(where)))
        assert np.isfinite(rates).all() and (rates >= 0).all() and (rates <= peak * (1 + 1e-6)).all()
        assert rates[where == warmup][0] == pytest.approx(peak, rel=1e-5)
        assert (np.diff(rates[where >= warmup]) <= 1e-6 * peak).all() and (np.diff(rates[where <= warmup]) >= -1e-6 * peak).all()


def test_schedules_are_jitted_and_give_float32():
    for schedule in (linear(0.1, 3, 9), cosine(0.1, 3, 9), constant(0.1, 3), rsqrt(0.1, 3), rsqrt(0.1, 3, rise=True)):
        rates = jax.jit(jax.vmap(schedule))(jnp.arange(12))
        assert rates.dtype == jnp.float32 and rates.shape == (12,)
        np.testing.assert_allclose(rates, [at(schedule, s) for s in range(12)], rtol=1e-6)
