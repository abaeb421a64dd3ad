import jax
import jax.numpy as jnp
import numpy as np

from ptmjax.nn import masks

BATCH = {"segments": jnp.array([[1, 1, 2, 2, 0], [1, 1, 1, 1, 1]])}


def rows(text: str) -> np.ndarray:
    """"10 11" -> [[1, 0], [1, 1]] bool."""
    return np.array([[c == "1" for c in row] for row in text.split()])


def test_full_keeps_packed_examples_apart_and_hides_padding():
    see = masks.full(BATCH).dense()
    np.testing.assert_array_equal(see[0], rows("11000 11000 00110 00110 00000"))
    assert np.asarray(see[1]).all()


def test_causal_sees_up_to_itself():
    see = masks.causal(BATCH).dense()
    np.testing.assert_array_equal(see[0], rows("10000 11000 00100 00110 00000"))
    np.testing.assert_array_equal(see[1], np.tri(5, dtype=bool))


def test_own_sees_itself_but_not_padding():
    see = masks.own(BATCH).dense()
    np.testing.assert_array_equal(see[0], rows("10000 01000 00100 00010 00000"))
    np.testing.assert_array_equal(see[1], np.eye(5, dtype=bool))


def test_given_is_the_batchs():
    visible = jnp.asarray(np.random.default_rng(0).random((2, 5, 5)) < 0.5)
    np.testing.assert_array_equal(masks.given({"visible": visible}), visible)


PREFIX = {"segments": jnp.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])}
NEAR = np.abs(np.arange(5)[:, None] - np.arange(5)) < 2


def test_masks_join():
    prefix = masks.causal(BATCH) | masks.full(PREFIX)
    np.testing.assert_array_equal(prefix[1], rows("11100 11100 11100 11110 11111"))
    np.testing.assert_array_equal((masks.causal(BATCH) & masks.own(BATCH)).dense(), masks.own(BATCH).dense())


def test_masks_join_as_their_arrays_do_with_plain_arrays_too():
    """numpy's and jax's, on either side; `&` of one batch keeps segments and causality apart from the rest."""
    made = [masks.full(BATCH), masks.causal(BATCH), masks.own(BATCH), masks.full(PREFIX), masks.causal(BATCH) & NEAR, NEAR, jnp.asarray(NEAR)]
    for a in made:
        for b in made:
            whole = [np.broadcast_to(masks.dense(x), (2, 5, 5)) for x in (a, b)]
            np.testing.assert_array_equal(np.broadcast_to(masks.dense(a & b), (2, 5, 5)), whole[0] & whole[1])
            np.testing.assert_array_equal(np.broadcast_to(masks.dense(a | b), (2, 5, 5)), whole[0] | whole[1])
    see = masks.causal(BATCH) & masks.full(BATCH)
    assert see.causal and see.rest is None and (masks.full(BATCH) & masks.causal(BATCH)).causal
    for other in (NEAR, masks.causal(PREFIX)):
        see = masks.full(BATCH) & other
        assert not see.causal and see.rest is not None and see.queries is see.keys is BATCH["segments"]


def test_a_mask_passes_jit():
    see = jax.jit(lambda s: masks.causal({"segments": s}) & NEAR)(BATCH["segments"])
    np.testing.assert_array_equal(see.dense(), (masks.causal(BATCH) & NEAR).dense())


def test_cross_sees_the_encoder_side_of_its_own_example():
    batch = {"segments": jnp.array([[1, 2, 2, 0]]), "encoded_segments": jnp.array([[1, 1, 2, 0, 0]])}
    np.testing.assert_array_equal(masks.cross(batch).dense()[0], rows("11000 00100 00100 00000"))


def test_nothing_hides_the_whole_encoder():
    batch = {**BATCH, "encoded_segments": jnp.ones((BATCH["segments"].shape[0], 9), jnp.int32)}
    nothing, cross = masks.nothing(batch).dense(), masks.cross(batch).dense()
    assert nothing.shape == cross.shape and not nothing.any() and cross.any()
