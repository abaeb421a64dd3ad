"""Row by row, an evaluation adds up to itself."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.objectives.base import Objective
from ptmjax.parallel.sharding import rows_sharding
from ptmjax.training.loop import plan_of
from ptmjax.training.rowwise import make_rows
from ptmjax.training.step import make_eval
from ptmjax.types import UserError
from tests.drivers import tiny


def test_rows_add_up_to_the_evaluation():
    """On several devices too."""
    stage, mesh = tiny.stage(), tiny.mesh_of(2, 1, 2)
    plan = plan_of(stage, mesh, 3, 10)
    params, sums = plan.create().params, {}
    rows, whole = make_rows(plan.build, plan.objective, plan.seed), make_eval(plan.build, plan.objective, plan.seed)
    for batch in stage.heldout["heldout"](rows_sharding(mesh), tiny.ROWS):
        found = rows(params, batch, jnp.int32(0))
        with jax.set_mesh(mesh):
            losses, metrics, _ = whole(params, batch, plan.abstract.carry, jnp.int32(0))
        for name, x in (losses | metrics).items():
            assert found[name].value.shape == found[name].weight.shape == (tiny.ROWS,)
            np.testing.assert_allclose(found[name].value.sum(), x.value, rtol=1e-5)
            np.testing.assert_allclose(found[name].weight.sum(), x.weight, rtol=1e-6)
        fills = np.asarray(batch["index"]) < 0
        assert (np.asarray(found["mlm"].weight) == 0).tolist() == fills.tolist()
        sums = found
    assert len(np.unique(np.asarray(sums["mlm"].value)[~fills])) > 1 and fills.any()


def test_what_has_no_rows_is_refused():
    class Coupled(Objective):
        coupled = True

    build, _ = tiny.bert()
    with pytest.raises(UserError, match="Coupled couples the rows"):
        make_rows(build, Coupled())
    stage = tiny.stage(tiny.lstm)
    plan = plan_of(stage, tiny.mesh_of(1, 1, 1), 3, 10)
    batch = next(stage.heldout["heldout"](rows_sharding(plan.mesh), tiny.ROWS))
    with pytest.raises(UserError, match="carry from batch to batch"):
        make_rows(plan.build, plan.objective).eval_shape(plan.abstract.params, batch, plan.abstract.step)
