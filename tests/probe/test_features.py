"""The vector of a row."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.probe import features
from ptmjax.training.build import Build
from ptmjax.types import UserError
from tests.drivers import tiny


@pytest.fixture(scope="module")
def model():
    build, _ = tiny.bert()
    return build, build.init(jax.random.key(0))


def rows(n=3, length=6, weights=None):
    tokens = np.random.default_rng(0).integers(tiny.FIRST, tiny.SIZE, (n, length)).astype(np.int32)
    weights = np.ones((n, length), np.float32) if weights is None else weights
    return {"tokens": tokens, "segments": np.ones((n, length), np.int32), "weights": weights}


def test_mean_first_and_layers(model):
    build, params = model
    weights = np.ones((3, 6), np.float32)
    weights[:, [0, 5]] = 0
    batch = rows(weights=weights)
    out = build.nets(params)["model"].encode(batch, capture=frozenset({"hidden"}))
    get = lambda **how: np.asarray(features.make_features(build, **how)(params, batch))
    last, first = get(), get(layer=1)
    np.testing.assert_allclose(last, out.state[:, 1:5].mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(get(pool="first"), out.state[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first, out.aux[0]["hidden"][0][:, 1:5].mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(get(layer=2), last, rtol=1e-4, atol=1e-5)  # there is no norm behind the last
    assert np.abs(first - last).max() > 1e-3


@pytest.mark.parametrize("how, fault", [({"layer": 3}, "layer 3: the encoder has 2"), ({"layer": 0}, "layer 0"), ({"pool": "max"}, "pool is 'max'")])
def test_faults(model, how, fault):
    build, params = model
    with pytest.raises(UserError, match=fault):
        features.make_features(build, **how)(params, rows())


def test_rows_that_fill_up_are_left_out():
    weights = np.zeros((3, 6), np.float32)
    weights[:2, 1] = 1
    found = features.over(lambda params, batch: jnp.arange(6.0).reshape(3, 2), {}, [rows(), rows(weights=weights)])
    assert found.shape == (5, 2)


@pytest.mark.parametrize("names, which", [(["model"], "model"), (["generator", "discriminator"], "discriminator"), (["tower"], "tower"), (["a", "b"], None)])
def test_which_network(model, names, which):
    build = Build({name: model[0].factories["model"] for name in names})
    if which is None:
        with pytest.raises(UserError, match="the networks 'a', 'b'; a probe reads one"):
            features.network_of(build)
    else:
        assert features.network_of(build) == which
