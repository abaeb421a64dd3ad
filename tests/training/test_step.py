"""The step: micro-batches, promised denominators, frozen parameters, non-finite gradients, births on a mesh."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from ptmjax.nn.dropout import dropout
from ptmjax.nn.linear import Linear
from ptmjax.nn.param import param
from ptmjax.nn.stack import stacked
from ptmjax.objectives.base import Objective, weighted
from ptmjax.parallel.mesh import make_mesh
from ptmjax.training.build import Build
from ptmjax.training.optimizer import Adafactor, AdamW, Lamb
from ptmjax.training.state import Plan
from ptmjax.training.step import cut, join, make_eval, make_step
from ptmjax.types import Sum, UserError
from tests.models.bert import batch, bert, farthest, pretraining

ROWS = 8


class Line(nnx.Module):
    """[B, L] tokens -> w[token] + b: two leaves that show what the step does."""

    def __init__(self, *, key):
        self.kernel = param(key, (256,), ("vocab",), 0.5)
        self.bias = param(key, (1,), (None,), "zeros")

    def __call__(self, b, key):
        return dropout(self.kernel[...][b["tokens"]] + self.bias[...], 0.3, key)


class Square(Objective):
    """Weighted squares, a sample in the loss, and a carry that counts the tokens of the row."""

    def __init__(self, wrong=0.0, coupled=False):
        self.wrong, self.coupled, self.coefficients = wrong, coupled, {"square": 2.0}

    def weights(self, b):
        return {"square": b["weights"].sum() + self.wrong, "rows": b["row_weights"].sum()}

    def losses(self, nets, b, keys, step, carry):
        y = nets["model"](b, keys.dropout)
        noise = keys.sample.each(lambda k: jax.random.normal(k, b["tokens"].shape[1:]))
        square, row = (y - noise - b["targets"] / 100) ** 2, (y.mean(1) - 1 + carry["seen"]) ** 2
        carry = {"seen": carry["seen"] + b["weights"].sum(1)}
        return {"square": weighted(square, b["weights"]), "rows": weighted(row, b["row_weights"])}, carry, {"big": weighted((square > 1).astype(jnp.float32), b["weights"])}

    def init_carry(self, nets, rows):
        return {"seen": jnp.zeros(rows)}


def plan(objective=None, *, mesh=None, rows=ROWS, micro=1, frozen=(), tx=None, build=None):
    build = Build({"model": Line}, frozen=frozen) if build is None else build
    tx = optax.sgd(0.1) if tx is None else tx
    return Plan(build, Square() if objective is None else objective, tx, mesh or make_mesh("", jax.devices()[:1]), rows, 3, micro)


def unequal(micro: int, rows: int = ROWS) -> dict:
    """All scored positions in the rows of micro-batch 0, one token in micro-batch 1, none elsewhere (row r is in r % micro)."""
    b = batch(rows)
    r, w = np.arange(rows), np.asarray(b["weights"])
    first = (np.cumsum(w > 0, 1) == 1) & (w > 0)
    w = np.where((r % micro == 0)[:, None], w, np.where((r == 1)[:, None], first, 0)).astype(np.float32)
    return b | {"weights": jnp.asarray(w), "row_weights": jnp.asarray(((r % micro == 0) | (r == 1)).astype(np.float32))}


def run(p: Plan, batches: list[dict]):
    state, step, lines = p.create(), make_step(p), []
    with jax.set_mesh(p.mesh):
        for b in batches:
            state, line = step(state, b)
            lines.append({name: float(x) for name, x in line.items()})
    return state, lines


@functools.cache
def whole():
    return run(plan(), [unequal(4)] * 3)


@pytest.mark.parametrize("micro", [2, 4, 8])
def test_micro_batches_equal_the_whole_batch(micro):
    """Dropout and samples on; loss, metrics, carry, gradient norm and (by SGD) every parameter."""
    (state, lines), (want, expected) = run(plan(micro=micro), [unequal(4)] * 3), whole()
    for a, b in zip(lines, expected, strict=True):
        assert set(a) == {"loss", "grad_norm", "skipped", "gap/square", "gap/rows", "square", "rows", "big"} and a == pytest.approx(b, rel=1e-5, abs=1e-6)
        assert a["gap/square"] == a["gap/rows"] == 0 and a["grad_norm"] > 0.01
        assert a["loss"] == pytest.approx(2 * a["square"] + a["rows"], rel=1e-5)
    assert farthest(state.params, want.params)[0] < 1e-5
    np.testing.assert_array_equal(state.carry["seen"], want.carry["seen"])
    np.testing.assert_array_equal(state.carry["seen"], 3 * unequal(4)["weights"].sum(1))
    assert int(state.step) == 3


def test_micro_batches_of_bert_equal_the_whole_batch():
    """Two losses with their own denominators, dropout in every layer; SGD shows the gradients."""
    build, b = bert(131, 12, 2, 1, 16, rate=0.2), unequal(4)
    results = [run(plan(pretraining(), build=build, micro=m), [b] * 2) for m in (1, 4)]
    for one, many in zip(results[0][1], results[1][1], strict=True):
        assert one == pytest.approx(many, rel=1e-5, abs=1e-6) and one["gap/mlm"] == one["gap/nsp"] == 0 and one["overflow"] == 0
    assert results[0][1][0]["loss"] != results[0][1][1]["loss"]
    first = plan(pretraining(), build=build).create().params
    change = [{n: np.asarray(x) - first[n] for n, x in state.params.items()} for state, _ in results]
    for name in change[0].keys() - {"model/stack/groups/0/attention/key/bias"}:  # its true gradient is 0
        unit = np.spacing(np.abs(np.asarray(first[name])).max())  # a parameter holds its change no finer than this
        assert np.abs(change[1][name] - change[0][name]).max() <= 2e-5 * np.abs(change[0][name]).max() + unit, name


def test_more_micro_batches_need_less_memory():
    """Pitfall 44: what a step holds beside parameters and optimizer."""
    held = []
    for micro in (1, 8):
        p = plan(build=Build({"model": Deep}), rows=512, micro=micro)
        with jax.set_mesh(p.mesh):
            held.append(make_step(p).lower(p.abstract, batch(512)).compile().memory_analysis().temp_size_in_bytes)
    assert held[1] < 0.5 * held[0], held


def test_the_mean_is_over_the_whole_batch_not_of_means():
    """Micro-batch A scores 4.0 over 2 tokens in all, B 1.0 a token over 8: 1.6 each way."""
    class Given(Objective):
        def weights(self, b):
            return {"x": b["weights"].sum()}

        def losses(self, nets, b, keys, step, carry):
            return {"x": weighted(b["targets"] + 0 * nets["model"](b, None), b["weights"])}, carry, {}

    b = {name: x[:2, :8] if x.ndim == 2 else x[:2] for name, x in batch().items()}
    b |= {"targets": jnp.array([[4] * 8, [1] * 8], jnp.int32), "weights": jnp.array([[1.0] * 2 + [0] * 6, [1.0] * 8])}
    for micro in (1, 2):
        assert run(plan(Given(), rows=2, micro=micro), [b])[1][0]["loss"] == pytest.approx(1.6)


def test_coupled_refuses_micro_batches():
    with pytest.raises(ValueError, match="Square couples the rows of a batch: micro-batches must be 1, not 2"):
        make_step(plan(Square(coupled=True), micro=2))
    assert run(plan(Square(coupled=True)), [unequal(4)])[1][0]["gap/square"] == 0


def test_a_wrong_promise_shows_as_a_gap():
    line = run(plan(Square(wrong=3.0), micro=2), [unequal(4)])[1][0]
    assert line["gap/square"] == 3 and line["gap/rows"] == 0


def test_weights_and_losses_must_name_the_same():
    class Other(Square):
        def weights(self, b):
            return {"sqare": b["weights"].sum()}

    p = plan(Other())
    with pytest.raises(ValueError, match=r"Other: weights\(\) names \['sqare'\], losses\(\) names \['rows', 'square'\]"):
        run(p, [unequal(4)])


def test_a_coefficient_of_no_loss_and_a_name_of_two_numbers_are_refused():
    """The first would have no effect, the second hide a number."""
    objective, batch = Square(), unequal(4)
    p = plan(objective)
    trace = lambda: make_step(p).eval_shape(p.abstract, batch)
    with jax.set_mesh(p.mesh):
        objective.coefficients = {"sqare": 2.0}
        with pytest.raises(UserError, match=r"Square.coefficients has \['sqare'\], its losses are \['rows', 'square'\]"):
            trace()
        objective.coefficients = {}
        losses = objective.losses
        for name in ("square", "grad_norm"):
            objective.losses = lambda *given, name=name: (*(found := losses(*given))[:2], {name: found[2]["big"]})
            with pytest.raises(ValueError, match=rf"Square: \['{name}'\] name two numbers of a step"):
                trace()


def test_nothing_scored_is_loss_zero_and_no_change():
    b = batch() | {"weights": jnp.zeros((8, 19)), "row_weights": jnp.zeros(8)}
    first = {n: np.asarray(x) for n, x in plan().create().params.items()}
    state, (line,) = run(plan(micro=4), [b])
    assert line["loss"] == line["grad_norm"] == line["skipped"] == 0
    jax.tree.map(np.testing.assert_array_equal, state.params, first)


@pytest.mark.parametrize("micro", [1, 4])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(micro):
    bad = unequal(4) | {"row_weights": jnp.full(8, jnp.inf)}
    tx = AdamW(lambda step: 0.1).transform(Build({"model": Line}).leaves)
    copy = lambda state: jax.tree.map(np.asarray, (state.params, state.opt_state, state.carry))
    p = plan(micro=micro, tx=tx)
    state, step = p.create(), make_step(p)
    with jax.set_mesh(p.mesh):
        state, _ = step(state, unequal(4))
        before = copy(state)
        state, line = step(state, bad)
        assert bool(line["skipped"]) and int(state.loop["skipped"]) == int(state.loop["in_a_row"]) == 1 and int(state.step) == 2
        jax.tree.map(np.testing.assert_array_equal, copy(state), before)
        state, line = step(state, unequal(4))
    assert np.isfinite(line["loss"]) and int(line["skipped"]) == int(state.loop["skipped"]) == 1 and int(state.step) == 3
    assert int(state.loop["in_a_row"]) == 0
    assert (np.asarray(state.params["model/bias"]) != before[0]["model/bias"]).all()


@pytest.mark.parametrize("case", ["update", "sum"])
def test_a_parameter_that_overflows_is_not_kept(case):
    """The gradient is finite; the update is not, or its sum with the parameter."""
    factor = jnp.float32(3e38) if case == "sum" else jnp.float32(jnp.inf)
    p = plan(tx=optax.stateless(lambda updates, params: {name: jnp.where(u == 0, 0, factor) for name, u in updates.items()}))
    state, step = p.create(), make_step(p)
    before = jax.tree.map(np.asarray, (state.params, state.carry))
    with jax.set_mesh(p.mesh):
        for number in (1, 2):
            state, line = step(state, unequal(4))
            assert np.isfinite(line["grad_norm"]) and int(line["skipped"]) == int(state.loop["in_a_row"]) == number
    jax.tree.map(np.testing.assert_array_equal, (state.params, state.carry), before)


def test_frozen_parameters_keep_their_bits_and_have_no_optimizer_state():
    build = Build({"model": Line, "teacher": Line}, frozen=["teacher/*", "model/bias"])
    p = plan(build=build)
    p = dataclasses.replace(p, tx=AdamW(lambda step: 0.1).transform(p.trainable(build.leaves)))
    first = {n: np.asarray(x) for n, x in p.create().params.items()}
    state, _ = run(p, [unequal(4)] * 2)
    for name in first:
        assert (np.asarray(state.params[name]) == first[name]).all() == (name != "model/kernel"), name
    assert sorted(x.shape for x in jax.tree.leaves(state.opt_state)) == [(), (256,), (256,)]


def test_each_step_draws_anew_and_a_rerun_draws_the_same():
    p = plan(tx=optax.sgd(0.0))
    b = unequal(4) | {"start": jnp.ones(8, bool)}  # the same carry each time
    one, two = run(p, [b] * 3)[1], run(p, [b] * 3)[1]
    assert one == two and len({line["square"] for line in one}) == 3


def test_a_row_that_starts_a_stream_begins_with_zeros():
    b = unequal(4)
    state, _ = run(plan(micro=4), [b, b, b | {"start": jnp.arange(8) == 4}])
    times = np.where(np.arange(8) == 4, 1, 3)
    np.testing.assert_array_equal(state.carry["seen"], times * np.asarray(b["weights"].sum(1)))


def test_cut_takes_every_mth_row_and_join_undoes_it():
    x = {"a": jnp.arange(8), "b": jnp.arange(16).reshape(8, 2)}
    parts = cut(x, 4)
    np.testing.assert_array_equal(parts["a"], [[0, 4], [1, 5], [2, 6], [3, 7]])
    jax.tree.map(np.testing.assert_array_equal, join(parts), x)


@functools.cache
def born(shape: str) -> dict[str, np.ndarray]:
    devices = jax.devices() if shape else jax.devices()[:1]
    p = plan(pretraining(), build=bert(131, 24, 4, 2, 40, types=3, length=37), mesh=make_mesh(shape, devices))
    return {name: np.asarray(x) for name, x in p.create().params.items()}


@pytest.mark.parametrize("shape", ["data=8", "fsdp=8", "data=2,fsdp=2,model=2"])
def test_initial_bits_do_not_depend_on_the_mesh(shape):
    one, many = born(""), born(shape)
    assert set(one) == set(many)
    for name in one:
        np.testing.assert_array_equal(many[name], one[name], err_msg=name)


OPTIMIZERS = {"adam": AdamW, "lamb": functools.partial(Lamb, eps=1e-3), "adafactor": functools.partial(Adafactor, smallest=0)}


def sizes(tree) -> tuple[int, int]:
    """Bytes in all, and on each device."""
    leaves = jax.tree.leaves(tree)
    shard = lambda x: int(np.prod(x.sharding.shard_shape(x.shape)))
    return sum(x.size * x.dtype.itemsize for x in leaves), sum(shard(x) * x.dtype.itemsize for x in leaves)


@pytest.mark.parametrize("shape, shards", [("data=8", 1), ("fsdp=8", 8), ("data=2,fsdp=2,model=2", 4)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_per_device_of_bert_base(name, shape, shards, number):
    """Parameters and moments lie over fsdp and model (shards of them), copied over data; nothing is allocated. Adafactor's
    are small, and rows and columns that lie over another axis than the parameter's other one are copied along that."""
    build = bert(30522, 768, 12, 12, 3072, length=512, types=2)
    p = plan(pretraining(), build=build, mesh=make_mesh(shape), tx=OPTIMIZERS[name](lambda step: 0.1).transform(build.leaves))
    state = p.abstract
    total, held = sizes(state.params)
    assert total >= 4 * build.count() and held <= 1.1 * total / shards
    moments, there = sizes(state.opt_state)
    if name == "adafactor":
        assert moments < 0.01 * total and there <= moments
    else:
        assert moments >= 2 * 4 * build.count() and there <= 1.1 * moments / shards
    number(f"BERT-base, {name}, {shape}: bytes a device of parameters, of optimizer; times shards / total", [
        held * shards / total, there * shards / moments])


def test_bytes_per_device_where_fsdp_divides_the_optimizer_alone():
    build = bert(30522, 768, 12, 12, 3072, length=512, types=2)
    p = plan(pretraining(), build=build, mesh=make_mesh("data=2,fsdp=2,model=2"), tx=AdamW(lambda step: 0.1).transform(build.leaves))
    all_of_it, only = p.abstract, dataclasses.replace(p, fsdp="optimizer").abstract
    assert jax.tree.map(lambda x: x.sharding, only.opt_state) == jax.tree.map(lambda x: x.sharding, all_of_it.opt_state)
    total, held = sizes(only.params)
    assert 0.5 * total <= held <= 0.51 * total and sizes(all_of_it.params)[1] < 0.6 * held


class Deep(nnx.Module):
    """[B, L] tokens -> [B, L] through a padded table and a stack of two layers, all of it sharded."""

    def __init__(self, *, key):
        a, b = jax.random.split(key)
        self.table = param(a, (256, 16), ("vocab", "embed"), 0.5, real=140)
        self.layers = stacked(functools.partial(Linear, 16, 16, ("embed", "mlp"), init="fan_in"), 2, b)

    def __call__(self, b, key):
        h, _ = jax.lax.scan(lambda h, layer: (jnp.tanh(layer(h)), None), dropout(self.table[...][b["tokens"]], 0.3, key), self.layers)
        return h.sum(-1)


@functools.cache
def steps_of(name: str, shape: str) -> list[dict]:
    build, mesh = Build({"model": Deep}), make_mesh(shape, jax.devices() if shape else jax.devices()[:1])
    assert build.leaves["model/layers/kernel"].names == ("layers", "embed", "mlp")
    p = plan(build=build, mesh=mesh, tx=OPTIMIZERS[name](lambda step: 0.01).transform(build.leaves))
    state, lines = run(p, [batch() | {"start": jnp.ones(ROWS, bool)}] * 6)
    if shape and name == "adafactor":
        factored = next(x for x in jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "rows")) if hasattr(x, "rows"))
        assert factored.rows["model/layers/kernel"].sharding.spec == P(None, "fsdp", None)
        assert factored.columns["model/table"].sharding.spec == P(None, "fsdp") and factored.rows["model/table"].sharding.spec == P("model", None)
    return lines


@pytest.mark.parametrize("shape", ["data=2,fsdp=2,model=2", "fsdp=8"])
@pytest.mark.parametrize("name", ["lamb", "adafactor"])
def test_optimizers_on_a_mesh_are_those_of_one_device(name, shape):
    """Their norms and moments run over axes that lie on several devices. Adam's are elementwise: the systems' tests.

    LAMB with an eps above the noise of the gradients: below, Adam's first steps divide noise by noise, here by 8e-5 of the loss.
    """
    lines, wanted = steps_of(name, shape), steps_of(name, "")
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in wanted], rel=1e-5)
    other = steps_of("adafactor" if name == "lamb" else "lamb", "")
    assert wanted[0] == other[0] and all(abs(a["loss"] - b["loss"]) > 0.01 for a, b in zip(wanted[1:], other[1:])), "they move the parameters"


def test_a_batch_that_does_not_divide_is_a_user_error():
    with pytest.raises(UserError, match="a batch of 8 rows does not divide by 4 row shards of the mesh times 4 micro-batches: make the batch a multiple of 16"):
        plan(mesh=make_mesh("data=2,fsdp=2,model=2"), micro=4).abstract


def test_a_carry_must_count_rows():
    class Bad(Square):
        def init_carry(self, nets, rows):
            return {"seen": jnp.zeros(())}

    with pytest.raises(ValueError, match=r"carry\['seen'\] is \[\]: its first axis must count the 8 rows"):
        plan(Bad()).abstract


def test_evaluation_has_no_dropout_and_is_independent_of_the_batches():
    objective, b = Square(), batch() | {"start": jnp.ones(8, bool)}
    p = plan(objective)
    params, evaluate = p.create().params, make_eval(p.build, objective)
    losses, metrics, carry = evaluate(params, b, {"seen": jnp.zeros(8)}, jnp.int32(0))
    one = losses | metrics
    fill = jnp.pad(b["index"][5:], (0, 2), constant_values=-1)
    parts = [{n: x[:5] for n, x in b.items()}, {n: jnp.pad(x[5:], [(0, 2)] + [(0, 0)] * (x.ndim - 1)) for n, x in b.items()} | {"index": fill}]
    many = [a | b for a, b, _ in (evaluate(params, part, {"seen": jnp.zeros(5)}, jnp.int32(0)) for part in parts)]
    total = jax.tree.map(jnp.add, *many, is_leaf=lambda x: isinstance(x, jax.Array))
    for name, s in one.items():
        assert isinstance(s, Sum) and float(total[name].mean()) == pytest.approx(float(s.mean()), rel=1e-6)
        assert float(total[name].weight) == float(s.weight)
    np.testing.assert_array_equal(carry["seen"], b["weights"].sum(1))
    again = evaluate(params, b, {"seen": jnp.zeros(8)}, jnp.int32(0))[0]
    assert again and all(float(again[n].value) == float(s.value) for n, s in losses.items())
