import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from ptmjax.training.optimizer import AdamW, Group, decays, linear
from ptmjax.types import UserError

RNG = np.random.default_rng(0)
PARAMS = {"m/dense/kernel": RNG.normal(size=(4, 3)), "m/dense/bias": RNG.normal(size=(3,)), "m/norm/scale": RNG.normal(1, 0.2, (3,)), "m/table": RNG.normal(size=(5, 3))}
PARAMS = {name: x.astype(np.float32) for name, x in PARAMS.items()}
ZERO = {name: np.zeros_like(x) for name, x in PARAMS.items()}
always = lambda rate: lambda step: jnp.float32(rate)


def trained(optimizer: AdamW, grads: list[dict]) -> dict[str, np.ndarray]:
    tx, params = optimizer.transform(PARAMS), {name: jnp.asarray(x) for name, x in PARAMS.items()}
    state = tx.init(params)

    @jax.jit
    def step(params, state, g, number):
        updates, state = tx.update(g, state, params, step=number)
        return optax.apply_updates(params, updates), state

    for number, g in enumerate(grads):
        params, state = step(params, state, g, number)
    return {name: np.asarray(x) for name, x in params.items()}


def drawn(n: int, scale: float = 1.0) -> list[dict]:
    rng = np.random.default_rng(1)
    return [{name: rng.normal(0, scale, x.shape).astype(np.float32) for name, x in PARAMS.items()} for _ in range(n)]


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


@pytest.mark.parametrize("warmup, steps", [(0, 10), (1, 10), (4, 10), (9, 10)])
def test_linear_is_transformers_schedule(warmup, steps):
    tx = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    there = transformers.get_linear_schedule_with_warmup(tx, warmup, steps)
    ours, optimizer = linear(3e-4, warmup, steps), AdamW(linear(3e-4, warmup, steps))
    for s in range(steps + 3):
        assert float(ours(jnp.int32(s))) == pytest.approx(there.get_last_lr()[0], rel=1e-5, abs=1e-10), s
        assert optimizer.rate(s) == pytest.approx(there.get_last_lr()[0], rel=1e-5, abs=1e-10)
        tx.step()
        there.step()


@pytest.mark.parametrize("warmup, steps", [(10, 10), (11, 10), (-1, 10), (0, 0)])
def test_a_warmup_that_does_not_fit_is_a_user_error(warmup, steps):
    with pytest.raises(UserError, match=f"warm-up of {warmup} steps does not fit into {steps}"):
        linear(1e-3, warmup, steps)


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
        AdamW(always(1.0), groups=[Group("m/dens/*")]).transform(PARAMS)


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


def test_masters_and_moments_are_float32_and_stay_so():
    tx = AdamW(always(1e-3)).transform(PARAMS)
    state = tx.init(PARAMS)
    after = tx.update(ZERO, state, PARAMS, step=0)[1]
    assert [x.dtype for x in jax.tree.leaves(state)] == [x.dtype for x in jax.tree.leaves(after)]
    assert {str(x.dtype) for x in jax.tree.leaves(state)} == {"float32", "int32"}


def test_a_hundred_equal_steps_move_a_float32_parameter():
    """In bfloat16 it would stay at 1."""
    tx, p = AdamW(always(1e-3), decay=0.0).transform(["w"]), {"w": jnp.ones(())}
    state = tx.init(p)
    for number in range(100):
        updates, state = tx.update({"w": jnp.ones(())}, state, p, step=number)
        p = optax.apply_updates(p, updates)
    assert float(p["w"]) == pytest.approx(0.9, abs=1e-4)
