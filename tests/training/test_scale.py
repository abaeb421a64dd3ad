"""The loss scale of float16: gradients do not depend on it, steps move it, checkpoints keep it."""
import dataclasses
import functools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.training import scale
from ptmjax.training.build import Build
from ptmjax.training.checkpoint import FORMAT, Checkpoints
from ptmjax.training.optimizer import AdamW
from ptmjax.training.step import make_step
from tests.training.test_step import Line, Square, plan, unequal

BAD = unequal(4) | {"row_weights": jnp.full(8, jnp.inf)}


@functools.cache
def made(compute="float16"):
    """Plan and step, of 4 micro-batches."""
    build = Build({"model": Line}, compute=compute)
    p = plan(Square(), build=build, micro=4, tx=AdamW(lambda step: 0.1, clip=0.1).transform(build.leaves))
    return p, make_step(p)


def run(batches, state=None, compute="float16", **loop):
    """`loop` in the place of what the state holds."""
    p, step = made(compute)
    state, lines = p.create() if state is None else state, []
    state = dataclasses.replace(state, loop=state.loop | {name: jnp.asarray(x, state.loop[name].dtype) for name, x in loop.items()})
    with jax.set_mesh(p.mesh):
        for batch in batches:
            state, line = step(state, batch)
            lines.append({name: float(x) for name, x in line.items()})
    return state, lines


def of(state):
    return float(state.loop["scale"]), int(state.loop["steady"])


def test_only_float16_has_one():
    assert set(made("bfloat16")[0].abstract.loop) == set(made("float32")[0].abstract.loop) == {"skipped", "in_a_row", "begin"}
    assert of(made()[0].create()) == (2**15, 0) and scale.moved({}, jnp.bool_(True)) == {}


def test_it_is_halved_by_a_step_that_is_not_finite_and_doubled_after_many_that_are():
    state, lines = run([unequal(4), BAD, unequal(4)], scale=2**8)
    assert of(state) == (2**7, 1) and [line["scale"] for line in lines] == [2**8, 2**8, 2**7]
    assert [line["skipped"] for line in lines] == [0, 1, 1]
    state, _ = run([unequal(4)], state, steady=scale.STEADY - 1)
    assert of(state) == (2**8, 0)
    state, _ = run([BAD], state, steady=scale.STEADY - 1)
    assert of(state) == (2**7, 0)


@pytest.mark.parametrize("at, finite, then", [(scale.LEAST, False, scale.LEAST), (scale.MOST, True, scale.MOST)])
def test_it_stays_between_bounds(at, finite, then):
    found = scale.moved({"scale": jnp.float32(at), "steady": jnp.int32(scale.STEADY - 1)}, jnp.bool_(finite))
    assert (float(found["scale"]), int(found["steady"])) == (then, 0) and found["scale"].dtype == jnp.float32


def test_gradients_clip_and_logs_do_not_see_it():
    """Of a power of two, to the bit, where nothing over- or underflows; and they are those of float32, as near as float16 is."""
    (one, line), (other, again) = (run([unequal(4)] * 2, scale=at) for at in (2**6, 2**8))
    assert [x | {"scale": 0} for x in line] == [x | {"scale": 0} for x in again] and line[0]["scale"] == 2**6
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    _, wanted = run([unequal(4)], compute="float32")
    assert {name: line[0][name] for name in wanted[0]} == pytest.approx(wanted[0], rel=2e-3)


def test_a_gradient_beyond_float16_is_skipped_until_the_scale_is_small_enough():
    first = jax.tree.map(np.asarray, made()[0].create().params)
    state, (line,) = run([unequal(4)], scale=2**24)
    assert line["skipped"] == 1 and of(state) == (2**23, 0) and np.isfinite(line["loss"])
    jax.tree.map(np.testing.assert_array_equal, state.params, first)
    state, lines = run([unequal(4) | {"start": jnp.ones(8, bool)}] * 20, state)  # the same carry each time
    left = int(lines[-1]["skipped"])
    assert 1 < left < 20 and of(state) == (2 ** (24 - left), 21 - left)


def test_a_resume_is_bit_equal(tmp_path):
    batches = [unequal(4), BAD, unequal(4)] * 2
    whole, lines = run(batches, scale=2**8)
    middle, first = run(batches[:3], scale=2**8)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, middle)
    state = Checkpoints(tmp_path).restore(lambda step: made()[0].abstract, scale.PATHS)
    last, rest = run(batches[3:], state)
    assert repr(first + rest) == repr(lines) and of(last) == of(whole) == (2**6, 1)
    jax.tree.map(np.testing.assert_array_equal, (last.params, last.opt_state), (whole.params, whole.opt_state))


def test_a_run_may_go_on_in_another_type(tmp_path):
    """The stored step, of a run in float32, has no scale: it begins; and what another type does not read of a step is left there."""
    shutil.copytree(Path(__file__).parents[1] / "golden" / f"format_{FORMAT}", tmp_path / "checkpoints")
    said, back = [], made("bfloat16")[0].abstract
    restore = lambda like: Checkpoints(tmp_path / "checkpoints", say=said.append).restore(lambda step: like, scale.PATHS)
    state = restore(made()[0].abstract)
    assert (int(state.step), *of(state), int(state.loop["begin"])) == (7, 2**15, 0, 9000)
    assert jax.tree.map(lambda x: (x.dtype, x.sharding), state) == jax.tree.map(lambda x: (x.dtype, x.sharding), made()[0].abstract)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(8, state)
    found = restore(back)
    assert int(found.step) == 7 and jax.tree.structure(found) == jax.tree.structure(back) and said == []
    assert {name: int(x) for name, x in found.loop.items()} == {"begin": 9000, "in_a_row": 10000, "skipped": 11000}


def test_steps_that_look_for_the_scale_are_no_fault_of_the_run():
    """From 2**15 down to 1 are 15 steps, which Every.nonfinite may be less than; at the least they count."""
    loop = {name: jnp.asarray(x) for name, x in scale.begun(jnp.dtype("float16")).items()}
    counted = []
    for _ in range(20):
        counted.append(int(scale.blamed(loop)))
        loop = scale.moved(loop, jnp.bool_(False))
    assert counted == [0] * 15 + [1] * 5 and int(scale.blamed({})) == 1
