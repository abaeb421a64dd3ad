"""Every system solves, on unseen records, what needs its mechanism, and is at chance without it."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.nn import masks
from tests.systems import bert, cbow, distil, electra, lstm, t5, xlnet
from tests.systems.harness import FIRST, WORDS, N, evaluated, run

CHANCE = 1 / WORDS
AT_MASK = {"other": 0.0, "shown": 1.0}  # the second list says the first again; every scored word is shown as MASK


@pytest.fixture
def means(number):
    """As evaluated(), means in place of sums, and told to `number`."""
    def measure(*args, **kwargs) -> dict[str, float]:
        found = {name: float(s.mean()) for name, s in evaluated(*args, **kwargs).items()}
        number("unseen records", found)
        return found

    return measure


@functools.cache
def solved_bert():
    return run(bert.system(), steps=900, peak=3e-3)[1].params


def test_bert_recalls_and_knows_the_next_sentence(means):
    assert means(bert.system(**AT_MASK), solved_bert())["accuracy"] > 0.95
    assert means(bert.system(), solved_bert())["nsp_accuracy"] > 0.9


def test_bert_is_at_chance_with_attention_cut_to_the_own_position(means):
    _, state = run(bert.system(masks.own), steps=900, peak=3e-3)
    assert means(bert.system(masks.own, **AT_MASK), state.params)["accuracy"] < 2 * CHANCE


def test_lstm_recalls_across_segments_and_is_at_chance_when_carry_is_zeroed(means):
    _, state = run(lstm.system(), steps=500, peak=1e-2)
    assert means(lstm.system(recall=True), state.params, steps=16)["accuracy"] > 0.95
    assert means(lstm.system(recall=True), state.params, steps=16, cut=True)["accuracy"] < 2 / lstm.VOCABULARY


def test_cbow_finds_planted_neighbours():
    _, state = run(cbow.system(), steps=300, peak=1e-2, rows=64)
    v = np.asarray(state.params["model/embedder/parts/tokens/table"])[FIRST : FIRST + WORDS]
    likeness = (v @ v.T) / np.outer(np.linalg.norm(v, axis=1), np.linalg.norm(v, axis=1))
    np.fill_diagonal(likeness, -1)
    assert (likeness.argmax(1) == (np.arange(WORDS) ^ 1)).mean() > 0.95


@pytest.mark.slow
def test_xlnet_recalls_from_memory_and_is_at_chance_without(means):
    _, state = run(xlnet.system(), steps=700, peak=5e-3)
    assert means(xlnet.system(recall=True), state.params)["accuracy"] > 0.95
    assert means(xlnet.system(recall=True), state.params, cut=True)["accuracy"] < 2 * CHANCE


def test_the_query_stream_never_sees_its_own_word_nor_a_later_one_of_the_order():
    system = xlnet.system()
    build, source = system.build, system.source()
    net = build.nets(build.init(jax.random.key(0)))["model"]
    batch = {k: jnp.asarray(v)[None] for k, v in source.example(0).items()}
    tokens = batch["tokens"] + (1 - 2 * (batch["tokens"] == FIRST + WORDS - 1)) * jnp.eye(N, dtype=jnp.int32)  # row i changes word i
    see = jax.jit(lambda t: net.encode({**batch, "tokens": t}, memory=net.init_memory(1)).state["g"][0])
    moved = np.stack([np.abs(see(t[None]) - see(batch["tokens"])).max(-1) for t in tokens])  # [changed, position]
    visible = np.asarray(batch["visible"][0]).T
    assert (moved[~visible] == 0).all() and (moved[visible] > 0).all() and visible.sum() == N * (N - 1) // 2


@pytest.mark.slow
def test_distil_teaches_recall_without_targets_and_leaves_the_teacher_alone(means):
    teacher = {name.replace("model", "teacher", 1): v for name, v in solved_bert().items() if "/nsp/" not in name}
    system = distil.system(**AT_MASK)
    blank = lambda batch: {**batch, "targets": jnp.zeros_like(batch["targets"])}
    lines, state = run(system, steps=600, peak=5e-3, params=teacher, change=blank)
    assert set(teacher) == set(system.build.frozen)
    assert all((np.asarray(state.params[name]) == np.asarray(v)).all() for name, v in teacher.items())
    assert "teacher" not in str(jax.tree_util.tree_leaves_with_path(state.opt_state))
    found = means(system, state.params)
    assert found["soft"] < 0.05 * lines[0]["soft"] and found["agreement"] > 0.95, found
    assert found["scores"] < 0.4 * lines[0]["scores"], (found, lines[0])


def test_t5_recalls_spans_and_is_at_chance_with_the_first_list_out_of_sight(means):
    _, state = run(t5.system(), steps=600, peak=3e-3)
    assert means(t5.system(recall=True), state.params)["accuracy"] > 0.95
    assert means(t5.system(recall=True, apart=True), state.params)["accuracy"] < 2 * CHANCE


def test_electra_finds_what_a_frozen_generator_replaced(means):
    system = electra.system(frozen=["generator/*"], other=0.0)
    _, state = run(system, steps=700, peak=3e-3)
    found = means(system, state.params)
    assert 0.05 < found["replaced"] < 0.2
    assert 2 * found["precision"] * found["recall"] / (found["precision"] + found["recall"]) > 0.9
