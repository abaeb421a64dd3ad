import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from ptmjax.training.build import Leaf
from ptmjax.training.optimizer import Adafactor, AdamW, Group, Lamb, decays, mean
from ptmjax.training.schedules import linear
from ptmjax.types import UserError
from tests.models.albert import albert

RNG = np.random.default_rng(0)
SHAPES = {"m/dense/kernel": (4, 3), "m/dense/bias": (3,), "m/norm/scale": (3,), "m/table": (5, 3)}
PARAMS = {name: RNG.normal(1 if name.endswith("scale") else 0, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}
ZERO = {name: np.zeros_like(x) for name, x in PARAMS.items()}
always = lambda rate: lambda step: jnp.float32(rate)


def leaf(shape: tuple[int, ...], layers: bool = False, unused: int = 0) -> Leaf:
    return Leaf(shape, "float32", ("layers",) * layers + (None,) * (len(shape) - layers), unused)


LEAVES = {name: leaf(shape) for name, shape in SHAPES.items()}


def trained(optimizer, grads: list[dict], params: dict = PARAMS, leaves: dict[str, Leaf] = LEAVES) -> dict[str, np.ndarray]:
    tx, params = optimizer.transform(leaves), {name: jnp.asarray(x) for name, x in params.items()}
    state = tx.init(params)

    @jax.jit
    def step(params, state, g, number):
        updates, state = tx.update(g, state, params, step=number)
        return optax.apply_updates(params, updates), state

    for number, g in enumerate(grads):
        params, state = step(params, state, g, number)
    return {name: np.asarray(x) for name, x in params.items()}


def drawn(n: int, scale: float = 1.0, shapes: dict = SHAPES, seed: int = 1) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(0, scale, shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(n)]


def near(ours: dict, theirs: dict, first: dict = PARAMS, rtol: float = 1e-5, least: float = 1e-3) -> None:
    """The changes since `first` agree relative to the greatest of their leaf, and there is one of `least` at any rate."""
    for name in first:
        change, wanted = ours[name] - first[name], theirs[name] - first[name]
        assert np.abs(change - wanted).max() <= rtol * np.abs(wanted).max() + 2 * np.spacing(np.abs(first[name]).max()), name
        assert np.abs(wanted).max() > least, name


@pytest.mark.parametrize("clip", [None, 1.0])
def test_twenty_steps_are_torchs_adamw(clip):
    """Warm-up and decline, decay of kernels and tables only, clipping of the global norm."""
    schedule, grads = linear(1e-2, 5, 30), drawn(20)
    ours = trained(AdamW(schedule, b2=0.98, eps=1e-6, decay=0.1, clip=clip), grads)
    p = {name: torch.nn.Parameter(torch.from_numpy(x.copy())) for name, x in PARAMS.items()}
    groups = [{"params": [x for n, x in p.items() if decays(n) == d], "weight_decay": 0.1 * d} for d in (True, False)]
    tx = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.98), eps=1e-6)
    rate = transformers.get_linear_schedule_with_warmup(tx, 5, 30)
    for g in grads:
        for name, x in p.items():
            x.grad = torch.from_numpy(g[name].copy())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(p.values(), clip)
        tx.step()
        rate.step()
    for name, x in p.items():
        np.testing.assert_allclose(ours[name], x.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=name)
        assert np.abs(ours[name] - PARAMS[name]).max() > 0.005


def test_zero_gradient_shrinks_kernels_and_leaves_norms_and_biases():
    """By lr * decay exactly."""
    ours = trained(AdamW(always(0.5), decay=0.25), [ZERO])
    for name, x in PARAMS.items():
        np.testing.assert_array_equal(ours[name], x * np.float32(1 - 0.125) if name in ("m/dense/kernel", "m/table") else x)


def test_groups_set_rate_and_decay_and_the_last_one_wins():
    groups = [Group("m/dense/*", rate=2.0, decay=0.5), Group("*/bias", rate=0.0), Group("m/table", decay=0.0)]
    ours = trained(AdamW(always(0.5), decay=0.25, groups=groups), [ZERO])
    np.testing.assert_array_equal(ours["m/dense/kernel"], PARAMS["m/dense/kernel"] * 0.5)  # 1 - .5 * 2 * .5
    np.testing.assert_array_equal(ours["m/table"], PARAMS["m/table"])
    moved = trained(AdamW(always(0.5), decay=0.25, groups=groups), drawn(1))
    plain = trained(AdamW(always(0.5), decay=0.25), drawn(1))
    np.testing.assert_array_equal(moved["m/dense/bias"], PARAMS["m/dense/bias"])  # decay .5 of the first group, rate 0 of the second
    np.testing.assert_array_equal(moved["m/norm/scale"], plain["m/norm/scale"])
    assert (moved["m/dense/kernel"] != plain["m/dense/kernel"]).all()


def test_a_rate_factor_scales_the_whole_update():
    grads = drawn(3)
    half, whole = trained(AdamW(always(0.01), groups=[Group("*", rate=0.5)]), grads), trained(AdamW(always(0.005)), grads)
    for name in PARAMS:
        np.testing.assert_allclose(half[name], whole[name], rtol=1e-6)


def test_a_group_that_matches_nothing_is_a_user_error():
    with pytest.raises(UserError, match="optimizer group pattern 'm/dens/.*' matches no parameter"):
        AdamW(always(1.0), groups=[Group("m/dens/*")]).transform(LEAVES)


@pytest.mark.parametrize("scale, shrunk", [(10.0, True), (1e-3, False)])
def test_the_clip_is_of_the_global_norm(scale, shrunk):
    """Adam hides a common factor; two steps of unequal size show it."""
    grads = drawn(1) + drawn(1, scale)
    norm = float(np.sqrt(sum((g**2).sum() for g in grads[1].values())))
    assert (norm > 1) == shrunk
    by_hand = [{n: g / max(1, np.sqrt(sum((x**2).sum() for x in gs.values()))) for n, g in gs.items()} for gs in grads]
    ours, hand = trained(AdamW(always(0.01)), grads), trained(AdamW(always(0.01), clip=None), by_hand)
    for name in PARAMS:
        np.testing.assert_allclose(ours[name], hand[name], rtol=1e-5, atol=1e-7)
    free = trained(AdamW(always(0.01), clip=None), grads)
    assert all(np.abs(ours[n] - free[n]).max() > 1e-5 for n in PARAMS)


@pytest.mark.parametrize("optimizer", [AdamW, Lamb, Adafactor])
def test_masters_and_moments_are_float32_and_stay_so(optimizer):
    tx = optimizer(always(1e-3)).transform(LEAVES)
    state = tx.init(PARAMS)
    after = tx.update(ZERO, state, PARAMS, step=0)[1]
    assert [x.dtype for x in jax.tree.leaves(state)] == [x.dtype for x in jax.tree.leaves(after)]
    assert {str(x.dtype) for x in jax.tree.leaves(state)} == {"float32", "int32"}


def test_a_hundred_equal_steps_move_a_float32_parameter():
    """In bfloat16 it would stay at 1."""
    tx, p = AdamW(always(1e-3), decay=0.0).transform({"w": leaf(())}), {"w": jnp.ones(())}
    state = tx.init(p)
    for number in range(100):
        updates, state = tx.update({"w": jnp.ones(())}, state, p, step=number)
        p = optax.apply_updates(p, updates)
    assert float(p["w"]) == pytest.approx(0.9, abs=1e-4)


# ------------------------------------------------------------------ without bias correction
def adam_by_hand(params: dict, grads: list[dict], rate: float, decay: float, b1=0.9, b2=0.98, eps=1e-6, correct=False, trust=False) -> dict:
    """In float64, from the papers' formulas: Kingma and Ba 2015, algorithm 1; You et al. 2020, algorithm 2."""
    p = {name: x.astype(np.float64) for name, x in params.items()}
    m, v = ({name: np.zeros_like(x) for name, x in p.items()} for _ in range(2))
    for t, gs in enumerate(grads, 1):
        for name, g in gs.items():
            m[name], v[name] = b1 * m[name] + (1 - b1) * g, b2 * v[name] + (1 - b2) * g.astype(np.float64) ** 2
            mean, square = (m[name] / (1 - b1**t), v[name] / (1 - b2**t)) if correct else (m[name], v[name])
            free = name.endswith(("bias", "scale"))
            u = mean / (np.sqrt(square) + eps) + (0 if free else decay) * p[name]
            norms = np.linalg.norm(p[name]), np.linalg.norm(u)
            p[name] = p[name] - rate * (norms[0] / norms[1] if trust and not free and all(norms) else 1) * u
    return p


def test_adam_without_bias_correction_is_the_paper_without_its_line():
    grads = drawn(6)
    ours = trained(AdamW(always(0.01), b2=0.98, decay=0.1, clip=None, correct=False), grads)
    near(ours, adam_by_hand(PARAMS, grads, 0.01, 0.1))
    corrected = trained(AdamW(always(0.01), b2=0.98, decay=0.1, clip=None), grads)
    near(corrected, adam_by_hand(PARAMS, grads, 0.01, 0.1, correct=True))
    assert min(np.abs(ours[name] - corrected[name]).max() for name in PARAMS) > 1e-3


def test_the_first_step_without_correction_is_about_three_times_as_long():
    """(1 - b1) / sqrt(1 - b2) = .1 / sqrt(.001)."""
    one, other = (trained(AdamW(always(0.01), eps=1e-12, decay=0.0, correct=c), drawn(1)) for c in (False, True))
    for name, x in PARAMS.items():
        np.testing.assert_allclose((one[name] - x) / (other[name] - x), 0.1 / 0.001**0.5, rtol=1e-3)


# ------------------------------------------------------------------ LAMB
@pytest.mark.parametrize("correct", [True, False])
def test_lamb_is_the_papers_algorithm(correct):
    grads = drawn(5)
    ours = trained(Lamb(always(0.02), b2=0.98, decay=0.1, clip=None, correct=correct), grads)
    near(ours, adam_by_hand(PARAMS, grads, 0.02, 0.1, correct=correct, trust=True))


def test_lamb_moves_a_matrix_by_the_rate_of_its_norm_and_a_zero_one_all_the_same():
    params = PARAMS | {"m/table": ZERO["m/table"]}
    ours = trained(Lamb(always(0.02), decay=0.1), drawn(1), params)
    moved = {name: np.linalg.norm(ours[name] - x) for name, x in params.items()}
    assert moved["m/dense/kernel"] == pytest.approx(0.02 * np.linalg.norm(PARAMS["m/dense/kernel"]), rel=1e-4)
    for name in ("m/table", "m/dense/bias", "m/norm/scale"):  # Adam's first step: every element by the rate
        assert moved[name] == pytest.approx(0.02 * PARAMS[name].size ** 0.5, rel=1e-3)
    still = trained(Lamb(always(0.02), decay=0.0), [ZERO])
    for name, x in PARAMS.items():
        np.testing.assert_array_equal(still[name], x)


# ------------------------------------------------------------------ Adafactor
def adafactor_of_transformers(params: dict, grads: list[dict], rate: float) -> dict:
    p = {name: torch.nn.Parameter(torch.from_numpy(x.copy())) for name, x in params.items()}
    tx = transformers.optimization.Adafactor(p.values(), lr=rate, scale_parameter=True, relative_step=False, warmup_init=False)
    for g in grads:
        for name, x in p.items():
            x.grad = torch.from_numpy(g[name].copy())
        tx.step()
    return {name: x.detach().numpy() for name, x in p.items()}


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_adafactor_is_transformers(scale):
    """Matrices factored, vectors not; of steps of one size no update is clipped, of growing ones they are."""
    shapes = SHAPES | {"m/wide": (3, 40), "m/cube": (2, 4, 3), "m/small": (6, 5)}
    params = drawn(1, 0.5, shapes, seed=4)[0]
    params["m/small"] *= 1e-5  # below the least size
    grads = [{name: g * scale * 3**i for name, g in gs.items()} for i, gs in enumerate(drawn(5, 1.0, shapes))]
    ours = trained(Adafactor(always(0.1), smallest=0), grads, params, {name: leaf(shape) for name, shape in shapes.items()})
    near(ours, adafactor_of_transformers(params, grads, 0.1), params, least=1e-5)
    free = trained(Adafactor(always(0.1), smallest=0, threshold=1e9), grads, params, {name: leaf(shape) for name, shape in shapes.items()})
    assert all(np.abs(free[name] - ours[name]).max() > 1e-6 for name in shapes), "growing gradients are clipped"


def test_a_matrix_with_a_small_side_is_not_factored():
    """The second moment of each element, as of a vector: T5's relative biases."""
    first = {"m/a": drawn(1)[0]["m/table"]}
    grads = [{"m/a": g["m/table"]} for g in drawn(4)]
    one = lambda least, shape: trained(Adafactor(always(0.1), smallest=least), [{"m/a": g["m/a"].reshape(shape)} for g in grads],
                                       {"m/a": first["m/a"].reshape(shape)}, {"m/a": leaf(shape)})["m/a"].reshape(5, 3)
    np.testing.assert_allclose(one(4, (5, 3)), one(0, (15,)), rtol=1e-6)
    assert np.abs(one(3, (5, 3)) - one(4, (5, 3))).max() > 1e-3


def test_a_row_that_never_had_a_gradient_survives_a_huge_one():
    """Its moment is 1e-30: a quotient with that of the others would underflow, and 0 times its root be no number."""
    grads = {name: np.zeros_like(x) for name, x in PARAMS.items()}
    grads["m/table"] = np.where(np.arange(5)[:, None] == 2, np.float32(1e12), np.float32(0)) * np.ones((5, 3), np.float32)
    ours = trained(Adafactor(always(0.1), smallest=0), [grads] * 3)["m/table"]
    assert np.isfinite(ours).all() and (ours[2] != PARAMS["m/table"][2]).all()
    np.testing.assert_array_equal(np.delete(ours, 2, 0), np.delete(PARAMS["m/table"], 2, 0))


@pytest.mark.parametrize(("shared", "axes"), [((), (1, 2)), (("mlp*",), (0, 1))])
def test_layers_that_share_have_one_ratio(shared, axes):
    """Adam's first step is as long everywhere, so that each element moves by the rate times the RMS of all that has one ratio with it."""
    name = "model/stack/groups/0/mlp/wi/kernel"
    held = albert((3,), shared=shared).leaves[name]
    of_rows = np.arange(1.0, 1 + held.shape[0]).reshape(-1, *[1] * (len(held.shape) - 1))  # of unequal sizes along the first axis
    x, g = (np.float32(of_rows * np.random.default_rng(seed).normal(size=held.shape)) for seed in range(2))
    after = trained(Lamb(always(0.02), eps=1e-12, decay=0.0, clip=None), [{name: g}], {name: x}, {name: held})[name]
    wanted = np.broadcast_to(0.02 * np.sqrt((x * x).mean(axes, keepdims=True)), x.shape)
    np.testing.assert_allclose(np.abs(after - x), wanted, rtol=1e-3)


# ------------------------------------------------------------------ layers and padding
N = 3
OPTIMIZERS = {"adam": AdamW(always(0.1), clip=None), "uncorrected": AdamW(always(0.1), clip=None, correct=False), "lamb": Lamb(always(0.1), clip=None),
              "adafactor": Adafactor(always(0.1), smallest=0, decay=0.01), "plain adafactor": Adafactor(always(0.1), smallest=0, relative=False)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_stack_of_layers_is_its_layers(name):
    """Layers of unequal sizes and gradients, so that whatever is shared between them shows; biases of a stack are matrices to the eye."""
    stacked = {n: (N, *shape) for n, shape in SHAPES.items()}
    size = {n: np.array([1.0, 10.0, 0.01], np.float32).reshape(-1, *[1] * len(shape)) for n, shape in SHAPES.items()}
    params = {n: x * size[n] for n, x in drawn(1, 1.0, stacked, seed=3)[0].items()}
    grads = [{n: g * size[n][::-1] ** i for n, g in gs.items()} for i, gs in enumerate(drawn(4, 1.0, stacked))]
    ours = trained(OPTIMIZERS[name], grads, params, {n: leaf(shape, layers=True) for n, shape in stacked.items()})
    for i in range(N):
        alone = trained(OPTIMIZERS[name], [{n: g[i] for n, g in gs.items()} for gs in grads], {n: x[i] for n, x in params.items()})
        for n in SHAPES:
            np.testing.assert_allclose(ours[n][i], alone[n], rtol=2e-6, atol=1e-6 * size[n].flat[i], err_msg=f"{n} of layer {i}")
    if name in ("lamb", "adafactor"):  # and taken as one matrix the stack would be trained otherwise
        one = trained(OPTIMIZERS[name], grads, params, {n: leaf(shape) for n, shape in stacked.items()})
        assert max(np.abs(one[n] - ours[n]).max() for n in SHAPES) > 0.1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_padding_of_a_vocabulary_has_no_part_in_a_statistic(name):
    """A table of 5 rows and one padded to 8: the same updates; the padding, without gradient, at most decays."""
    pad = lambda x, value: np.concatenate([x, np.full((3, *x.shape[1:]), value, np.float32)])
    names = ("m/table", "m/vector")
    params = {"m/table": PARAMS["m/table"], "m/vector": drawn(1, seed=5)[0]["m/table"][:, 0]}
    grads = [{n: g["m/table"].reshape(5, 3)[:, : params[n].shape[1]] if params[n].ndim == 2 else g["m/table"][:, 0] for n in names} for g in drawn(3)]
    alone = trained(OPTIMIZERS[name], grads, params, {n: leaf(x.shape) for n, x in params.items()})
    wide = {n: pad(x, 7.0) for n, x in params.items()}
    padded = trained(OPTIMIZERS[name], [{n: pad(g, 0.0) for n, g in gs.items()} for gs in grads], wide,
                     {n: leaf(x.shape, unused=3 * x[0].size) for n, x in wide.items()})
    for n in names:
        np.testing.assert_allclose(padded[n][:5], alone[n], rtol=1e-6)
        assert (padded[n][5:] <= 7).all() and (padded[n][5:] > 4).all() and np.unique(padded[n][5:]).size == 1


def test_means():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    plain, layers = leaf((2, 3, 4)), leaf((2, 3, 4), layers=True)
    assert mean(plain, x).shape == (1, 1, 1) and float(mean(plain, x)[0, 0, 0]) == 11.5
    np.testing.assert_array_equal(mean(layers, x).ravel(), [5.5, 17.5])
    padded = leaf((2, 3, 4), layers=True, unused=4)
    np.testing.assert_array_equal(mean(padded, x).ravel(), [3.5, 15.5])
    np.testing.assert_array_equal(mean(padded, x, -2)[0].ravel(), [2, 3, 4, 5])
    np.testing.assert_array_equal(mean(padded, x, -1)[0].ravel(), [1.5, 5.5, 9.5])
    assert mean(leaf(()), jnp.float32(3)).shape == ()


@pytest.mark.parametrize("real, layers", [(5, False), (5, True), (6, False)])
def test_the_padding_of_a_vocabulary_does_not_decide_what_is_factored(real, layers):
    """5 rows of 8 are below a least size of 6, 6 are not, whatever they are padded to."""
    shape = (2,) * layers + (8, 7)
    state = Adafactor(always(0.1), smallest=6).transform({"t": leaf(shape, layers, unused=(8 - real) * 7)}).init({"t": jnp.zeros(shape)})[1][0]
    assert (set(state.rows), set(state.whole)) == ((set(), {"t"}) if real < 6 else ({"t"}, set()))


@pytest.mark.parametrize("optimizer", [AdamW, Lamb, Adafactor])
@pytest.mark.parametrize("group, said", [
    (Group("m/*", rate=-1.0), "rate of optimizer group 'm/\\*' is -1.0"), (Group("m/*", rate=float("nan")), "rate of .* is nan"),
    (Group("m/*", decay=-5.0), "decay of optimizer group 'm/\\*' is -5.0"), (Group("m/*", decay=float("inf")), "decay of .* is inf")])
def test_groups_that_climb_or_grow_are_refused(optimizer, group, said):
    with pytest.raises(UserError, match=f"the {said}; it must be at least 0"):
        optimizer(always(0.1), groups=[Group("m/dense/*", rate=0.0, decay=0.0), group])


@pytest.mark.parametrize("optimizer", [AdamW, Lamb, Adafactor])
def test_groups_clip_and_rate_are_shared(optimizer):
    """Rates by the step that is passed; a group's factor; no decay of biases and norms; the clip is of the global norm."""
    tx = optimizer(lambda step: 0.1 * step, decay=0.5, groups=[Group("m/dense/*", rate=0.0)])
    np.testing.assert_array_equal(trained(tx, drawn(1))["m/table"], PARAMS["m/table"])  # step 0 has rate 0
    ours = trained(tx, drawn(2))
    assert tx.rate(3) == pytest.approx(0.3) and (ours["m/table"] != PARAMS["m/table"]).all()
    np.testing.assert_array_equal(ours["m/dense/kernel"], PARAMS["m/dense/kernel"])
    still = trained(optimizer(always(0.1), decay=0.5), [ZERO])
    for name, x in PARAMS.items():
        assert (np.abs(still[name]) < np.abs(x)).all() == decays(name) and (still[name] == x).all() != decays(name)
    with pytest.raises(UserError, match="optimizer group pattern 'x' matches no parameter"):
        optimizer(always(0.1), groups=[Group("x")]).transform(LEAVES)
    grads = drawn(1) + drawn(1, 10.0)
    by_hand = [{n: g / max(1, np.sqrt(sum((x**2).sum() for x in gs.values()))) for n, g in gs.items()} for gs in grads]
    clipped, hand = trained(optimizer(always(0.01), clip=1.0), grads), trained(optimizer(always(0.01), clip=None), by_hand)
    for name in PARAMS:
        np.testing.assert_allclose(clipped[name], hand[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make, words", [
    (lambda: AdamW(always(1), b1=1.0), "b1 is 1.0"), (lambda: Lamb(always(1), b2=-0.1), "b2 is -0.1"), (lambda: AdamW(always(1), eps=0.0), "eps is 0.0"),
    (lambda: AdamW(always(1), decay=-1.0), "decay is -1.0"), (lambda: Lamb(always(1), clip=0.0), "clip is 0.0"),
    (lambda: Adafactor(always(1), threshold=0.0), "threshold is 0.0"), (lambda: Adafactor(always(1), power=-0.8), "power is -0.8"),
    (lambda: Adafactor(always(1), eps=(0.0, 1e-3)), "eps is 0.0"), (lambda: Adafactor(always(1), smallest=-1), "smallest is -1")])
def test_numbers_that_make_no_optimizer_are_user_errors(make, words):
    with pytest.raises(UserError, match=words):
        make()
