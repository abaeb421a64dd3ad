import jax.numpy as jnp
import numpy as np

from ptmjax.nn import masks

BATCH = {"segments": jnp.array([[1, 1, 2, 2, 0], [1, 1, 1, 1, 1]])}


def rows(text: str) -> np.ndarray:
    """"10 11" -> [[1, 0], [1, 1]] bool."""
    return np.array([[c == "1" for c in row] for row in text.split()])


def test_full_keeps_packed_examples_apart_and_hides_padding():
    see = masks.full(BATCH)
    np.testing.assert_array_equal(see[0], rows("11000 11000 00110 00110 00000"))
    assert np.asarray(see[1]).all()


def test_causal_sees_up_to_itself():
    see = masks.causal(BATCH)
    np.testing.assert_array_equal(see[0], rows("10000 11000 00100 00110 00000"))
    np.testing.assert_array_equal(see[1], np.tri(5, dtype=bool))


def test_own_sees_itself_but_not_padding():
    see = masks.own(BATCH)
    np.testing.assert_array_equal(see[0], rows("10000 01000 00100 00010 00000"))
    np.testing.assert_array_equal(see[1], np.eye(5, dtype=bool))


def test_given_is_the_batchs():
    visible = jnp.asarray(np.random.default_rng(0).random((2, 5, 5)) < 0.5)
    np.testing.assert_array_equal(masks.given({"visible": visible}), visible)


def test_masks_join():
    prefix = masks.causal(BATCH) | masks.full({"segments": jnp.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])})
    np.testing.assert_array_equal(prefix[1], rows("11100 11100 11100 11110 11111"))
    np.testing.assert_array_equal(masks.causal(BATCH) & masks.own(BATCH), masks.own(BATCH))


def test_cross_sees_the_encoder_side_of_its_own_example():
    batch = {"segments": jnp.array([[1, 2, 2, 0]]), "encoded_segments": jnp.array([[1, 1, 2, 0, 0]])}
    np.testing.assert_array_equal(masks.cross(batch)[0], rows("11000 00100 00100 00000"))


def test_nothing_hides_the_whole_encoder():
    batch = {**BATCH, "encoded_segments": jnp.ones((BATCH["segments"].shape[0], 9), jnp.int32)}
    assert masks.nothing(batch).shape == masks.cross(batch).shape and not masks.nothing(batch).any() and masks.cross(batch).any()
