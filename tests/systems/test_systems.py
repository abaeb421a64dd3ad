"""The promises of the trunk, kept by all systems with dropout and sampling on: meshes, micro-batches, evaluation."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.training.checkpoint import Checkpoints
from tests.systems import albert, bert, cbow, distil, electra, lstm, t5, xlnet
from tests.systems.harness import ONE, PEAK, ROWS, System, born, compiled, evaluated, placed, run

SYSTEMS: dict[str, System] = {"bert": bert.system(), "lstm": lstm.system(), "cbow": cbow.system(), "xlnet": xlnet.system(),
                              "distil": distil.system(), "t5": t5.system(), "electra": electra.system(), "albert": albert.system()}
SEQUENCE = {f"{name} sequence": kind.system(sequence=True) for name, kind in (("bert", bert), ("t5", t5), ("electra", electra))}
OTHERWISE = SEQUENCE | {"bert optimizer": SYSTEMS["bert"]._replace(fsdp="optimizer")}  # laid out on a mesh
matrix = lambda *x: pytest.param(*x, marks=pytest.mark.slow)
each_system = pytest.mark.parametrize("name", SYSTEMS)


def unequal(batch):
    """Of 4 micro-batches the first keeps all its weights, the second one scored token (or row), the others none: 0/0 in each of them."""
    row = np.arange(ROWS)

    def keep(x):
        whole = x * (row % 4 == 0).reshape(-1, *[1] * (x.ndim - 1))
        first = x * (row == 1).reshape(-1, *[1] * (x.ndim - 1))
        if x.ndim == 2:
            first = first * (np.cumsum(first > 0, 1) == 1)
        return jax.device_put((whole + first).astype(x.dtype), batch["index"].sharding)

    return {**batch, **{k: keep(np.asarray(batch[k])) for k in ("weights", "row_weights") if k in batch}}


@functools.cache
def alone(name):
    """The reference: one device, one micro-batch."""
    return run(SYSTEMS[name], change=unequal)


def arrays(tree):
    raw = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [np.asarray(raw(x)) for x in jax.tree.leaves(tree)]


FURTHER = ("xlnet", "distil")  # whose networks are of the tests alone


@pytest.mark.parametrize(("shape", "micro", "name"), [
    *(((2, 2, 2), 4, name) for name in SYSTEMS if name not in FURTHER), *(matrix((2, 2, 2), 4, name) for name in FURTHER),
    ((2, 4, 1), 4, "bert optimizer"), *(((2, 1, 4), 1, name) for name in ("lstm", *SEQUENCE)), *(matrix((2, 1, 4), 1, name) for name in sorted(SYSTEMS.keys() - {"lstm"})),
    *(matrix(shape, micro, name) for shape, micro in (((8, 1, 1), 1), ((1, 8, 1), 4)) for name in SYSTEMS),
])
def test_any_mesh_and_micro_batches_give_the_run_of_one_device(name, shape, micro, number):
    like, system = name.split()[0], (SYSTEMS | OTHERWISE)[name]
    begin = placed(born(SYSTEMS[like], ROWS), compiled(system, shape, micro, PEAK, 10, ROWS)[0].abstract)
    lines, state = run(system, shape, micro, state=begin, change=unequal)
    reference, last = alone(like)
    for i, (line, want) in enumerate(zip(lines, reference, strict=True)):
        assert line["loss"] == pytest.approx(want["loss"], rel=1e-5), (i, line, want)
        assert line == pytest.approx(want, rel=1e-4, abs=2e-5), i
        assert all(v == 0 for k, v in line.items() if k.startswith(("gap/", "overflow", "skipped"))), line
    for x, y in zip(arrays(state.carry), arrays(last.carry), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=3e-5)
    assert len(lines) == 10
    number(f"{name} on {shape} in {micro} micro-batches: greatest relative difference of loss",
           max(abs(line["loss"] / want["loss"] - 1) for line, want in zip(lines, reference)))


@pytest.mark.parametrize("name", ["xlnet", "electra", "albert"])
def test_born_sharded_is_born_equal(name):
    plan, _ = compiled(SYSTEMS[name], (2, 2, 2), 4, PEAK, 10, ROWS)
    state, want = plan.create(), born(SYSTEMS[name], ROWS)
    assert any(not x.sharding.is_fully_replicated for x in state.params.values())
    for x, y in zip(arrays(state), arrays(want), strict=True):
        np.testing.assert_array_equal(x, y)


@each_system
def test_resumed_at_5_of_10_is_bit_equal(name, tmp_path):
    whole, final = alone(name)
    first, middle = run(SYSTEMS[name], steps=5, total=10, change=unequal)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, middle)
    checkpoints.close()
    plan, _ = compiled(SYSTEMS[name], ONE, 1, PEAK, 10, ROWS)
    rest, last = run(SYSTEMS[name], begin=5, state=Checkpoints(tmp_path).restore(lambda step: plan.abstract), change=unequal)
    assert first + rest == whole and len(rest) == 5
    for x, y in zip(arrays(last), arrays(final), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["cbow", "electra"])
def test_evaluation_with_samples_depends_neither_on_batch_size_nor_on_filled_up_rows(name):
    params = alone(name)[1].params
    big = evaluated(SYSTEMS[name], params, 32, records=64)
    for rows in (8, 24):  # 24: two whole batches and one of 16 records
        for metric, s in evaluated(SYSTEMS[name], params, rows, records=64).items():
            assert s.weight == big[metric].weight and s.value == pytest.approx(big[metric].value, rel=1e-5), metric
    assert big["rtd" if name == "electra" else "cbow"].weight > 0
