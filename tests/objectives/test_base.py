import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.objectives.base import Encoding, Objective, weighted
from ptmjax.objectives.rtd import Rtd
from ptmjax.objectives.seq2seq import Seq2Seq
from ptmjax.types import Key, Keys, Sum, UserError

KEYS = Keys(None, Key(jax.random.key(0), jnp.arange(2)))


def test_weights_are_a_denominator_and_padding_does_not_count():
    assert float(weighted(jnp.array([2, 4, 9, 9.0]), jnp.array([1, 1, 0, 0.0])).mean()) == 3.0
    assert float(weighted(jnp.pad(jnp.array([2, 4.0]), (0, 100), constant_values=9), jnp.pad(jnp.ones(2), (0, 100))).mean()) == 3.0


def test_sums_of_hosts_and_micro_batches_add_before_they_divide():
    """8/2 tokens and 8/8 tokens are 1.6, not the mean of means 2.5; perplexity follows from the total."""
    total = Sum(jnp.float32(8), jnp.float32(2)) + Sum(jnp.float32(8), jnp.float32(8))
    assert float(total.mean()) == pytest.approx(1.6) and float(jnp.exp(total.mean())) == pytest.approx(np.exp(1.6))


def test_nothing_scored_is_zero_with_zero_gradients():
    value, grad = jax.value_and_grad(lambda x: weighted(jnp.log(x), jnp.zeros(3)).mean())(jnp.ones(3))
    assert float(value) == 0 and not np.asarray(grad).any()


def test_total_is_the_sum_of_coefficient_times_mean():
    objective = Encoding([Half("mlm")], coefficients={"rtd": 50.0})
    assert float(objective.total({"mlm": 2.0, "rtd": 0.1})) == pytest.approx(7.0)
    assert Objective().init_carry({}, 4) == {} and not Objective().coupled


class Net:
    calls = 0

    def encode(self, batch, key):
        self.calls += 1
        return batch["tokens"] if key is None else key


class Half:
    def __init__(self, name):
        self.name = name

    def weights(self, batch):
        return {self.name: jnp.float32(2)}

    def losses(self, net, out, batch, keys):
        return {self.name: Sum(out.sum(), jnp.float32(2))}, {f"{self.name}_hit": Sum(jnp.float32(1), jnp.float32(2))}


def test_terms_share_one_encoding():
    net, batch = Net(), {"tokens": jnp.array([[1, 2], [3, 4]])}
    objective = Encoding([Half("a"), Half("b")], net="reader")
    sums, carry, metrics = objective.losses({"reader": net, "other": None}, batch, KEYS, jnp.int32(0), {"c": 1})
    assert net.calls == 1 and set(sums) == {"a", "b"} == set(objective.weights(batch)) and set(metrics) == {"a_hit", "b_hit"}
    assert float(sums["a"].mean()) == 5 and carry == {"c": 1}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a_hit")])
def test_two_terms_of_one_name_are_refused(names):
    """The second would silently replace the first."""
    with pytest.raises(UserError, match="two terms of one encoding report 'a.*: give each its own name"):
        Encoding([Half(n) for n in names]).losses({"model": Net()}, {"tokens": jnp.ones((2, 2))}, KEYS, jnp.int32(0), {})


def test_two_terms_of_one_name_promise_nothing():
    """A step asks for the weights first."""
    with pytest.raises(UserError, match="two terms of one encoding report 'a': give each its own name"):
        Encoding([Half("a"), Half("b"), Half("a")]).weights({})


def test_an_encoding_without_terms_is_refused():
    with pytest.raises(UserError, match="terms is 0; it must be at least 1"):
        Encoding([])


def test_a_misspelt_network_names_those_that_there_are():
    batch = {"tokens": jnp.ones((1, 2), jnp.int32), "targets": jnp.ones((1, 2), jnp.int32), "weights": jnp.ones((1, 2))}
    for objective, name in ((Encoding([Half("a")], net="modle"), "modle"), (Seq2Seq(net="modle"), "modle"), (Rtd(1), "generator")):
        with pytest.raises(UserError, match=f"asks for network '{name}', Experiment.networks has 'model': name one"):
            objective.losses({"model": Net()}, batch, KEYS, jnp.int32(0), {})


def test_networks_have_their_own_dropout_key():
    seen = []

    class Spy(Half):
        def losses(self, net, out, batch, keys):
            seen.append(out)
            return {}, {}

    keys = Keys(KEYS.sample, KEYS.sample)
    for name in ("one", "two"):
        Encoding([Spy("a")], net=name).losses({name: Net()}, {}, keys, jnp.int32(0), {})
    assert (jax.random.key_data(seen[0].base) != jax.random.key_data(seen[1].base)).any()
