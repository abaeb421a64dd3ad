import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.order import WINDOW, Mixed, Sequential, Shuffled, Streams, counter, smoothed
from ptmjax.types import UserError


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 3000), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(n, seed, epoch):
    record, epochs, start = Shuffled(n, seed)(np.arange(n) + epoch * n)
    assert np.sort(record).tolist() == list(range(n))
    assert (epochs == epoch).all() and start.all()


def test_shuffled_golden():
    assert Shuffled(10, 0)(np.arange(20))[0].tolist() == [5, 8, 7, 2, 4, 0, 3, 6, 1, 9, 1, 3, 6, 8, 2, 0, 7, 5, 4, 9]
    assert Shuffled(10**12, 7)(5 * 10**12 + 3) == (169260417457, 5, True)


def test_shuffled_is_uniform():
    """Chi-squared of (position, record) over 4000 epochs, and of pairs that follow each other; 5 standard deviations."""
    for n in (2, 3, 7, 10):
        record = Shuffled(n, 1)(np.arange(n * 4000))[0].reshape(4000, n)
        seen = np.array([np.bincount(column, minlength=n) for column in record.T])
        chi, freedom = ((seen - 4000 / n) ** 2 / (4000 / n)).sum(), (n - 1) ** 2
        assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5 + 5
    follows = (record[:, 1:] == (record[:, :-1] + 1) % n).mean()
    assert abs(follows - 1 / (n - 1)) < 0.01


def test_all_orders_of_three_occur_equally():
    record = Shuffled(3, 2)(np.arange(18000))[0].reshape(-1, 3)
    _, seen = np.unique(record, axis=0, return_counts=True)
    assert len(seen) == 6 and abs(seen - 1000).max() < 150


def test_seeds_and_epochs_differ():
    n = 1000
    orders = [Shuffled(n, seed)(np.arange(n) + e * n)[0] for seed in (0, 1) for e in (0, 1)]
    for i in range(4):
        for j in range(i):
            assert (orders[i] == orders[j]).mean() < 0.02


@pytest.mark.parametrize("order", [Shuffled(37, 3), Streams(37, 4, 3), Sequential(37)])
def test_ints_arrays_and_shapes_agree(order):
    positions = np.arange(148).reshape(37, 4)
    record, epoch, start = order(positions)
    assert record.shape == epoch.shape == start.shape == (37, 4)
    assert (record.dtype, epoch.dtype, start.dtype) == (np.int64, np.int64, bool)
    for p in (0, 5, 147):
        one = order(p)
        assert one == (record.flat[p], epoch.flat[p], start.flat[p])
        assert [type(x) for x in one] == [int, int, bool]


def test_far_positions_cost_no_more():
    assert 0 <= Shuffled(10**13, 0)(10**17)[0] < 10**13


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 9))
def test_streams_walk_their_own_runs(rows, more, seed):
    n = rows + more
    run = n // rows
    record, epoch, start = Streams(n, rows, seed)(np.arange(3 * run * rows).reshape(-1, rows))
    for e in range(3):
        mine = record[e * run : (e + 1) * run]
        assert (np.diff(mine, axis=0) == 1).all()  # each row goes on where it was
        assert len(np.unique(mine)) == run * rows and 0 <= mine.min() and mine.max() < n
        assert start[e * run].all() and not start[e * run + 1 : (e + 1) * run].any()
        assert (epoch[e * run : (e + 1) * run] == e).all()


def test_streams_leave_none_out_for_ever():
    record = Streams(11, 4, 0)(np.arange(4 * 2 * 60))[0]
    assert set(record.tolist()) == set(range(11))


def test_sequential():
    record, epoch, start = Sequential(3)(np.arange(3))
    assert record.tolist() == [0, 1, 2] and not epoch.any() and start.all()


def test_nothing_to_read():
    for order in (Shuffled, Sequential, lambda n: Streams(n, 1)):
        with pytest.raises(UserError, match="no records"):
            order(0)
    with pytest.raises(UserError, match="3 records are too few for 4 streams"):
        Streams(3, 4)


def test_counter_is_philox():
    """Outside reference: numpy's Philox with its public arguments; CRC-32 of "123456789" is CBF43926."""
    want = np.random.Generator(np.random.Philox(key=[5, 0xCBF43926], counter=[0, 3, 7, 2]))
    assert counter(5, "123456789", 7, 2, stream=3).random(9).tolist() == want.random(9).tolist()


def test_counter_depends_on_each_argument():
    base = dict(seed=1, task="a", record=2, epoch=3, stream=4)
    draw = lambda **change: tuple(counter(**{**base, **change}).integers(0, 2**63, 50).tolist())
    other = [draw(seed=2), draw(task="b"), draw(record=3), draw(epoch=4), draw(stream=5), draw(seed=-1)]
    assert draw() == draw() and len({draw(), *other}) == 7
    many = {counter(0, "t", r, e).integers(0, 2**63) for r in range(50) for e in range(50)}
    assert len(many) == 2500


# ------------------------------------------------------------------ mixtures
def mixed(rng, tasks):
    """Rates that lie up to some powers of ten apart."""
    rates = rng.exponential(size=tasks) ** rng.uniform(0.1, 4) + 1e-6
    return tuple(rng.integers(1, 40, tasks).tolist()), tuple(rates.tolist())


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 99), st.integers(0, 2**34))
def test_a_mixture_keeps_its_rates_at_every_window(tasks, seed, window):
    """Near the start and far from it: by how much a task's rows may be off the rate is a law, whatever the number of tasks."""
    sizes, rates = mixed(np.random.default_rng(seed), tasks)
    order = Mixed(sizes, rates, seed)
    shares = np.array(rates) / sum(rates)
    for begin, most in ((0, {1: 0, 2: 0.5, 3: 1}.get(tasks, 1.68)), (window * WINDOW, 2 * {1: 0, 2: 0.5, 3: 1}.get(tasks, 1.68))):
        task, _ = order.task(begin + np.arange(20 * WINDOW))
        seen = np.cumsum(task[:, None] == np.arange(tasks), 0)[WINDOW - 1 :: WINDOW]
        off = seen - shares * np.arange(WINDOW, 20 * WINDOW + 1, WINDOW)[:, None]
        assert np.abs(off).max() <= most + 1e-3


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(0, 99))
def test_every_epoch_of_every_task_of_a_mixture_is_a_permutation(tasks, seed):
    """A task's rows up to a window are its first ones, each once, and their (record, epoch) those of whole permutations."""
    sizes, rates = mixed(np.random.default_rng(seed), tasks)
    order, n = Mixed(sizes, rates, seed), 40 * WINDOW
    task, at = order.task(np.arange(n))
    record, epoch, start = order(np.arange(n))
    begins = np.cumsum([0, *sizes])
    assert start.all() and (np.searchsorted(begins, record, "right") - 1 == task).all()
    for number, size in enumerate(sizes):
        mine = task == number
        assert sorted(at[mine]) == list(range(mine.sum())) and (epoch[mine] == at[mine] // size).all()
        for e in range(mine.sum() // size):
            assert sorted(record[mine & (epoch == e)] - begins[number]) == list(range(size))


def test_a_mixture_is_read_from_anywhere():
    """Jumped in, it gives what walking gives; by rows, by batches, as ints."""
    order = Mixed((5, 70, 9), (3.0, 1.0, 0.01), 4)
    whole = order(np.arange(3000))
    for begin in (0, 1, 63, 64, 1999):
        for a, b in zip(order(np.arange(begin, 3000)), whole):
            assert (a == b[begin:]).all()
    assert all(order(p) == tuple(x[p] for x in whole) for p in range(200)) and order(np.arange(6).reshape(2, 3))[0].shape == (2, 3)
    assert 0 <= order(2**61)[0] < 84


def test_mixed_golden():
    """An order that changes breaks the resume of runs that were begun with it."""
    assert Mixed((3, 4), (0.75, 0.25), 0)(np.arange(16))[0].tolist() == [0, 2, 1, 2, 1, 0, 1, 2, 6, 0, 5, 1, 0, 1, 2, 0]
    alone = Mixed((10,), (1.0,), 0)
    assert (alone.task(np.arange(64))[0] == 0).all() and sorted(alone(np.arange(64))[0][:60]) != sorted([*range(10)] * 6)  # by windows
    assert sorted(alone(np.arange(640))[0]) == sorted([*range(10)] * 64)


def test_no_place_of_a_batch_is_always_of_one_task():
    task, _ = Mixed((50, 50), (0.5, 0.5), 0).task(np.arange(32 * 400))
    share = task.reshape(400, 32).mean(0)
    assert np.abs(share - 0.5).max() < 5 * 0.5 / 400**0.5
    one, other = (Mixed((50, 50), (0.5, 0.5), seed).task(np.arange(640))[0] for seed in (0, 1))
    assert 0.3 < (one != other).mean() < 0.7


def test_rates_of_a_mixture_are_above_zero():
    for rates in ((1.0, 0.0), (1.0,), (1.0, -1.0), (1.0, float("nan")), (1.0, float("inf"))):
        with pytest.raises(UserError, match="leave out a task of rate 0"):
            Mixed((3, 4), rates)
    with pytest.raises(UserError, match="no records to read"):
        Mixed((3, 0), (1.0, 1.0))


@pytest.mark.parametrize("exponent, rates", [(0.3, (0.568, 0.285, 0.147)), (0.7, (0.805, 0.161, 0.035)), (1.0, (0.9, 0.09, 0.01)), (0.0, (1 / 3,) * 3)])
def test_rates_of_languages_by_their_sizes(exponent, rates):
    """Pitfall 26."""
    assert smoothed((900, 90, 10), exponent) == pytest.approx(rates, abs=1e-3)
    seen = np.bincount(Mixed((900, 90, 10), smoothed((900, 90, 10), exponent)).task(np.arange(64000))[0]) / 64000
    assert seen == pytest.approx(rates, abs=1e-3)
