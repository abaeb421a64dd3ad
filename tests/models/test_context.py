import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ptmjax.models.context import Context
from ptmjax.nn import masks
from ptmjax.nn.param import param
from ptmjax.nn.positions import rotary_angles

BATCH = {"tokens": jnp.ones((2, 4), int), "segments": jnp.array([[1, 1, 2, 0], [1, 1, 1, 1]])}


class Bias(nnx.Module):
    def __init__(self, *, key):
        self.table = param(key, (3,), (None,), 1.0)

    def __call__(self, batch):
        return self.table[...][None, :, None, None]


def test_by_default_it_is_the_full_mask_alone():
    made = Context(key=jax.random.key(0))(BATCH)
    assert set(made) == {"see"}
    np.testing.assert_array_equal(made["see"].dense(), masks.full(BATCH).dense())


def test_rotary_angles_follow_the_batchs_positions():
    layer = Context(masks.causal, rotary=6, key=jax.random.key(0))
    np.testing.assert_array_equal(layer(BATCH)["angles"], rotary_angles(jnp.arange(4)[None], 6))
    where = jnp.array([[0, 1, 0, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(layer(BATCH | {"positions": where})["angles"], rotary_angles(where, 6))
    np.testing.assert_array_equal(layer(BATCH)["see"].dense(), masks.causal(BATCH).dense())


def test_a_bias_is_a_parameter_of_the_context():
    layer = Context(bias=Bias, key=jax.random.key(0))
    assert layer(BATCH)["bias"].shape == (2, 3, 1, 1) and layer.bias.table.shape == (3,)


def test_a_decoders_context_sees_the_encoders_segments():
    side = BATCH | {"encoded": jnp.zeros((2, 5, 6)), "encoded_segments": jnp.array([[1, 2, 2, 2, 0], [1, 1, 1, 1, 0]])}
    made = Context(masks.causal, key=jax.random.key(0))(side)
    np.testing.assert_array_equal(made["encoded_see"].dense(), masks.cross(side).dense())
    assert made["encoded"] is side["encoded"]
