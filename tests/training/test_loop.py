"""The loop: stages, what stands in the lines, and where a run is taken up."""
import dataclasses
import functools
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from ptmjax.data.loader import Source, evaluation
from ptmjax.data.order import Sequential
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training import loop
from ptmjax.training.loop import Every, plan_of
from ptmjax.training.metrics import read_lines
from ptmjax.training.optimizer import AdamW, Group
from ptmjax.training.schedules import constant, cosine, linear, rsqrt
from ptmjax.types import UserError
from tests.drivers import tiny
from tests.drivers.processes import TRAIN, address, together

ONE = (1, 1, 1)
OFTEN = Every(log=1, evaluate=0, save=1)


def lines_of(folder):
    return (folder / "metrics.jsonl").read_text()


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].tobytes() == wanted[name].tobytes(), name


def rows_left(folder, last):
    """Sets the run back to checkpoint `last`."""
    for path in (folder / "checkpoints").iterdir():
        if int(path.name) > last:
            shutil.rmtree(path)


# ------------------------------------------------------------------ stages
def lstm_stages(first=4, second=3, rows=8, frozen=("model/embedder/*",)):
    """Lengths 16, then 32 with frozen tables: another data order, carry and optimizer."""
    total = first + second
    return [tiny.stage(tiny.lstm, first, length=16, total=total),
            tiny.stage(tiny.lstm, second, length=32, rows=rows, frozen=frozen, total=total)]


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory):
    """(folder, final arrays) of a run of two stages that nothing disturbed, every step kept."""
    folder = tmp_path_factory.mktemp("stages")
    state = loop.train(lstm_stages(), folder, tiny.mesh_of(*ONE), seed=3, every=OFTEN, keep=99)
    return folder, tiny.arrays(state)


def test_a_later_stage_begins_its_carry_and_optimizer_anew(two_stages):
    folder, final = two_stages
    second = plan_of(lstm_stages()[1], tiny.mesh_of(*ONE), 3)
    boundary = tiny.arrays(loop.adopt(second, restored(folder, 4, lstm_stages()[0]), 4))
    assert boundary["step"] == 4
    carried = [name for name in boundary if name.startswith("carry/")]
    assert carried and not any(boundary[name].any() for name in carried) and all(final[name].any() for name in carried)
    moments = [name for name in boundary if name.startswith("opt_state/")]
    assert not any("embedder" in name for name in moments), "the frozen tables have no moments"
    assert [boundary[name] for name in moments if boundary[name].ndim == 0] == [0] * sum(boundary[name].ndim == 0 for name in moments)
    before = tiny.arrays(restored(folder, 4, lstm_stages()[0]))
    for name in final:
        if name.startswith("params/"):
            assert (final[name].tobytes() == before[name].tobytes()) == ("embedder" in name), name


def restored(folder, step, stage):
    return ocp.load(folder / "checkpoints" / str(step), plan_of(stage, tiny.mesh_of(*ONE), 3).abstract)


def test_the_same_trainable_parameters_keep_their_optimizer(two_stages):
    folder, _ = two_stages
    first, second = lstm_stages(frozen=())
    state = restored(folder, 4, first)
    after = tiny.arrays(loop.adopt(plan_of(second, tiny.mesh_of(*ONE), 3), state, 4))
    before = tiny.arrays(state)
    for name in before:
        if name.startswith("carry/"):
            assert before[name].any() and not after[name].any()
        elif name != "loop/begin":
            assert after[name].tobytes() == before[name].tobytes(), name
    assert (before["loop/begin"], after["loop/begin"]) == (0, 4)


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_resume_inside_at_the_boundary_and_after_it(two_stages, tmp_path, step):
    folder, final = two_stages
    shutil.copytree(folder, tmp_path / "run")
    rows_left(tmp_path / "run", step)
    state = loop.train(lstm_stages(), tmp_path / "run", tiny.mesh_of(*ONE), seed=3, every=OFTEN, keep=99)
    same(tiny.arrays(state), final)
    assert lines_of(tmp_path / "run") == lines_of(folder)


@pytest.fixture(scope="module")
def all_trained(tmp_path_factory):
    """The folder of a run of two stages of 4 and 3 steps that train the same parameters."""
    folder = tmp_path_factory.mktemp("all")
    loop.train(lstm_stages(frozen=()), folder, tiny.mesh_of(*ONE), seed=3, every=OFTEN, keep=99)
    return folder


@pytest.mark.parametrize("step, first, fault", [
    (5, 3, "began at step 4; by the present settings it began at 3"), (5, 6, "began at step 4; by the present settings it began at 0"),
    (4, 3, "began at step 0; by the present settings it began at 3"), (5, 4, None), (4, 6, None), (2, 3, None),
])
def test_a_finished_stage_keeps_its_length(all_trained, tmp_path, step, first, fault):
    """The second stage counts its data from its first step: a boundary moved behind the run's back would give other records."""
    shutil.copytree(all_trained, tmp_path / "run")
    rows_left(tmp_path / "run", step)
    stages = lstm_stages(first, 7 - first, frozen=())
    go = lambda: loop.train(stages, tmp_path / "run", tiny.mesh_of(*ONE), seed=3, every=OFTEN, keep=99)
    if fault is None:
        assert int(go().step) == 7
        return
    before = lines_of(tmp_path / "run")
    with pytest.raises(UserError, match=f"stands at step {step}, in a stage that {fault}: give"):
        go()
    assert lines_of(tmp_path / "run") == before


def test_another_batch_size_under_a_carry_is_refused(two_stages, tmp_path):
    folder, _ = two_stages
    shutil.copytree(folder, tmp_path / "run")
    with pytest.raises(UserError, match=r"7: carry/.* is float32\[8, .*the present run has float32\[16, .*keeps its batch size"):
        loop.train(lstm_stages(rows=16), tmp_path / "run", tiny.mesh_of(*ONE), seed=3, every=OFTEN)
    assert lines_of(tmp_path / "run") == lines_of(folder)


@pytest.mark.parametrize("frozen", [(), ("model/embedder/*",)])
def test_a_boundary_makes_nothing_but_what_is_new(frozen, monkeypatch):
    """Parameters, and moments that go on, are the arrays of the stage before; a second state would not fit where one just does."""
    first, second = (plan_of(stage, tiny.mesh_of(*ONE), 3) for stage in lstm_stages(frozen=frozen))
    state, wanted = first.create(), second.abstract
    new = lambda: {id(x): x.nbytes for x in jax.live_arrays() if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)}
    monkeypatch.setattr(type(second.build), "init", lambda *_: pytest.fail("parameters are made anew"))
    before = new()
    after = loop.adopt(second, state, 4)
    made = sum(new().values()) - sum(before.values())
    size = lambda tree: sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
    assert made == size(wanted.carry) + wanted.loop["begin"].dtype.itemsize + (size(wanted.opt_state) if frozen else 0)
    assert all(after.params[name] is x for name, x in state.params.items())
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), after) == jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), wanted)


def test_stages_with_other_parameters_are_refused():
    first, second = tiny.stage(tiny.lstm, 3), tiny.stage(tiny.bert, 3)
    with pytest.raises(UserError, match="other parameters than the one before it"):
        loop.adopt(plan_of(second, tiny.mesh_of(*ONE), 3), plan_of(first, tiny.mesh_of(*ONE), 3).create(), 4)


some_stage = functools.cache(lambda: tiny.stage(tiny.lstm, 3))


@pytest.mark.parametrize("schedule, first, second, ends", [
    (linear(0.1, 2, 7), 4, 3, None), (linear(0.1, 2, 6), 4, 3, 6), (linear(0.1, 2, 5), 4, 3, 5), (cosine(0.1, 0, 7), 4, 3, None),
    (cosine(0.1, 0, 3), 4, 3, 3), (cosine(0.1, 0, 3, 0.1), 4, 3, None), (constant(0.1), 4, 3, None), (rsqrt(0.1, 2), 4, 3, None),
    (linear(0.1, 1, 2), 1, 1, None), (linear(0.1, 0, 1), 1, 1, 1)])
def test_a_rate_that_ends_before_the_stages_do_is_refused(schedule, first, second, ends):
    optimizer = AdamW(schedule, groups=[Group("*", rate=0.0)])  # a group that rests on purpose is no fault
    stages = [dataclasses.replace(some_stage(), optimizer=optimizer, steps=n) for n in (first, second)]
    if ends is None:
        loop.check_rate(stages)
        return
    with pytest.raises(UserError, match=f"the learning rate is 0 after {ends} steps, and the stages have {first + second}: give"):
        loop.check_rate(stages)


def test_a_single_step_may_be_the_first_of_a_warmup():
    loop.check_rate([dataclasses.replace(some_stage(), optimizer=AdamW(linear(0.1, 1, 2)), steps=1)])


# ------------------------------------------------------------------ lines, watchers, compiling
class Watcher:
    def __init__(self):
        self.seen = []

    def trained(self, line, seconds, tokens):
        assert seconds > 0
        self.seen.append(line | {"tokens": tokens})

    def evaluated(self, line):
        self.seen.append(line)


def test_lines_watchers_and_one_compilation(tmp_path, monkeypatch):
    """A step whose gradient is not finite has null in its line and is counted; a watcher hears where the run stands."""
    made = []
    make = loop.make_step
    monkeypatch.setattr(loop, "make_step", lambda plan: made.append(make(plan)) or made[-1])
    stage = tiny.stage(tiny.lstm, 4, total=6)
    begun, watcher = [], Watcher()

    def poisoned(sharding, rows, begin):
        for step, batch in enumerate(stage.batches(sharding, rows, begin), begin + 1):
            yield batch | {"weights": batch["weights"] * (jnp.nan if step == 2 else 1)}

    def watch(done):
        begun.append(done)
        return [watcher]

    def go(steps):
        part = dataclasses.replace(stage, steps=steps, batches=poisoned)
        return loop.train([part], tmp_path, tiny.mesh_of(*ONE), seed=3, every=Every(log=2, evaluate=3, save=0), watch=watch)

    state = go(4)
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], line.get("set")) for line in lines] == [(2, None), (3, "heldout"), (4, None), (4, "heldout")]
    assert lines[0]["loss"] is None and lines[0]["grad_norm"] is None and lines[0]["skipped"] == 1
    assert lines[2]["skipped"] == 1 and math.isfinite(lines[2]["loss"]) and int(state.loop["skipped"]) == 1
    assert [line["tokens"] for line in watcher.seen if "tokens" in line] == [2 * 8 * 12] * 2
    assert [{k: v for k, v in line.items() if k != "tokens"} for line in watcher.seen] == lines
    go(6)
    assert begun == [0, 4] and [step._cache_size() for step in made] == [1, 1]
    go(6)
    assert begun == [0, 4, 6] and len(made) == 2
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [2, 3, 4, 4, 6, 6]


# ------------------------------------------------------------------ steps that are not finite
def poisoned(stage, bad):
    """The stage, with batches whose gradient is not finite in the steps `bad`."""
    def batches(sharding, rows, begin):
        for step, batch in enumerate(stage.batches(sharding, rows, begin), begin + 1):
            yield batch | {"weights": batch["weights"] * (jnp.nan if step in bad else 1)}

    return dataclasses.replace(stage, batches=batches)


def ids_of(stage, step):
    """The record ids of the batch of a step."""
    with jax.set_mesh(tiny.mesh_of(*ONE)):
        found = stage.batches(rows_sharding(tiny.mesh_of(*ONE)), stage.rows, step - 1)
        return ", ".join(map(str, np.asarray(next(found)["index"]).tolist()))


def test_a_run_of_steps_that_are_not_finite_stops_and_names_the_records(tmp_path):
    """Looked at where the host waits anyway: logged at 8, so the three of 5 to 7 and those of 9 to 11 stop nothing before 12 shows
    four in a row; the count goes on over a resume; nothing of the last row is saved, and it is not evaluated."""
    stage = tiny.stage(tiny.lstm, 20)
    bad = {5, 6, 7, *range(9, 15)}
    every = Every(log=4, evaluate=2, save=10, nonfinite=4)
    with pytest.raises(UserError, match=f"not finite in steps 9 to 12, the last of which read the records {ids_of(stage, 12)}: lower .*Every.nonfinite = 4 "):
        loop.train([poisoned(stage, bad)], tmp_path, tiny.mesh_of(*ONE), seed=3, every=every)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["10"]
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl") if "set" in line] == [2, 4, 6, 8, 10]
    assert read_lines(tmp_path / "metrics.jsonl")[-1] | {"loss": 0} == read_lines(tmp_path / "metrics.jsonl")[-1] | {"loss": 0, "step": 12, "skipped": 7}
    saved = restored(tmp_path, 10, stage)
    assert (int(saved.loop["in_a_row"]), int(saved.loop["skipped"])) == (2, 5) and all(np.isfinite(x).all() for x in saved.params.values())
    with pytest.raises(UserError, match="not finite in steps 9 to 12"):
        loop.train([poisoned(stage, bad)], tmp_path, tiny.mesh_of(*ONE), seed=3, every=every)
    never = dataclasses.replace(every, nonfinite=0)
    state = loop.train([poisoned(stage, bad)], tmp_path, tiny.mesh_of(*ONE), seed=3, every=never)
    assert (int(state.step), int(state.loop["in_a_row"]), int(state.loop["skipped"])) == (20, 0, 9)


@pytest.mark.parametrize("shape", ["2,1,1", pytest.param("1,1,2", marks=pytest.mark.slow)])
def test_it_ends_all_processes(tmp_path, shape):
    """Each holds half of the rows, or half of every parameter; both name all the records."""
    where = address()
    said = together([[*TRAIN, f"{tmp_path}/run:{shape}", "--system", "lstm", "--poison", 5, "--join", where, 2, i] for i in range(2)], 1, code=1)
    for text in said:
        assert f"UserError: gradient or parameters were not finite in steps 5 to 7, the last of which read the records {ids_of(tiny.stage(tiny.lstm, 10), 7)}: " in text
    assert "6" in {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}


def test_between_logged_steps_the_host_does_not_wait(monkeypatch):
    """The count is read where a step is logged, evaluated or saved; there are 3 of 12 such."""
    seen = []
    monkeypatch.setattr(loop, "check_finite", lambda limit, step, state, batch, all_steps: seen.append((limit, step, all_steps)))
    run = loop.Run(tiny.mesh_of(*ONE), Every(log=5, evaluate=0, save=0), None, [], 12, lambda step, wanted: wanted)
    monkeypatch.setattr(loop, "make_step", lambda plan: lambda state, batch: (dataclasses.replace(state, step=state.step + 1), {}))
    monkeypatch.setattr(loop.Checkpoints, "save", lambda *_: None)
    stage = dataclasses.replace(tiny.stage(tiny.lstm, 12), heldout={})
    plan = plan_of(stage, tiny.mesh_of(*ONE), 3)
    loop.run_stage(run._replace(checkpoints=loop.Checkpoints("nowhere")), stage, plan, plan.create(), 0, 12)
    assert seen == [(20, 5, None), (20, 10, None), (20, 12, 12)]


def test_many_records_are_cut_short():
    state = dataclasses.replace(plan_of(tiny.stage(tiny.lstm, 3), tiny.mesh_of(*ONE), 3).create(), loop={"in_a_row": jnp.int32(2)})
    batch = {"index": jnp.arange(500)}
    loop.check_finite(3, 7, state, batch)
    loop.check_finite(0, 7, state, batch)
    with pytest.raises(UserError, match=r"in steps 6 to 7, the last of which read the records 0, 1, .*, 62, 63 \.\.\. \(500 in all\): lower"):
        loop.check_finite(2, 7, state, batch)


def test_seven_records_in_a_batch_of_eight():
    """Pitfall 54: each is counted once, on one device and on eight, and the line says so."""
    source, stage = Source(tiny.RECORDS[:7], Sequential(7), tiny.shift, 1, "tiny"), tiny.stage(tiny.lstm, 3)
    params = plan_of(stage, tiny.mesh_of(*ONE), 3).create().params

    def found(rows, *shape):
        plan = plan_of(dataclasses.replace(stage, rows=rows), tiny.mesh_of(*shape), 3)
        evaluate, there = loop.make_eval(plan.build, plan.objective), jax.device_put(params, NamedSharding(plan.mesh, P()))
        with jax.set_mesh(plan.mesh):
            return loop.evaluate(plan, evaluate, there, 0, evaluation(source, rows, rows_sharding(plan.mesh), streams=True))

    whole, one, eight = found(7, *ONE), found(8, *ONE), found(8, 8, 1, 1)
    assert one == pytest.approx(whole, rel=1e-6) and eight == pytest.approx(whole, rel=1e-6) and whole["records"] == 7


def test_an_evaluation_does_not_depend_on_the_batch_size():
    stage = tiny.stage(tiny.lstm, 3)
    params = plan_of(stage, tiny.mesh_of(*ONE), 3).create().params

    def found(rows):
        plan = plan_of(dataclasses.replace(stage, rows=rows), tiny.mesh_of(*ONE), 3)
        with jax.set_mesh(plan.mesh):
            evaluate = loop.make_eval(plan.build, plan.objective)
            return loop.evaluate(plan, evaluate, params, 0, stage.heldout["heldout"](rows_sharding(plan.mesh), rows))

    small, large = found(4), found(32)
    assert found(4) == small, "twice on one state, the same bits"
    assert small["records"] == large["records"] == tiny.HELDOUT and small["loss"] == small["lm"]
    assert small["lm"] == pytest.approx(large["lm"], rel=1e-6) and small["accuracy"] == pytest.approx(large["accuracy"], abs=1e-7)
    assert np.isclose(small["lm"], math.log(tiny.SIZE), atol=0.2)
