import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.order import Sequential, Shuffled, Streams, counter
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
