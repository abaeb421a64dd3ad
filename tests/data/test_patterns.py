import jax.numpy as jnp
import numpy as np
import pytest

from ptmjax.data.choices import Ngrams
from ptmjax.data.masking import Masking
from ptmjax.data.order import counter
from ptmjax.data.pairs import Pairs
from ptmjax.data.patterns import TYPES, Patterns
from ptmjax.nn import masks
from ptmjax.types import BIDIRECTIONAL, SEQ2SEQ, UserError

RECORDS = [{"tokens": np.arange(5 + 100 * d, 65 + 100 * d, dtype=np.int32), "starts": np.arange(0, 60, 3, dtype=np.int32),
            "document": np.array([d], np.int32)} for d in range(40)]


def drawn(corruption, n):
    return corruption.rows([RECORDS[i % 40] for i in range(n)], [counter(0, "t", i, 0) for i in range(n)], RECORDS)


@pytest.fixture(scope="module")
def out(english):
    return drawn(Patterns(Pairs(Masking(english, 29, choice=Ngrams((0.8, 0.1, 0.1), words=False)), short=0.0)), 3000)


def test_patterns_come_at_their_rates(out):
    shares = np.bincount(out["pattern"], minlength=4) / 3000
    assert abs(shares - (1 / 3, 1 / 6, 1 / 6, 1 / 3)).max() < 4 * (0.23 / 3000) ** 0.5


def test_what_a_row_of_each_pattern_is(out, english):
    """Two segments both ways and seq2seq (there B always follows A), one from the left and the right; types tell all of it; the next
    sentence is scored in rows read both ways alone; both segments have predicted tokens."""
    for pattern, (first, second) in TYPES.items():
        rows = {key: x[out["pattern"] == pattern] for key, x in out.items()}
        real, seps = rows["segments"] > 0, (rows["targets"] == english.sep).sum(1)
        assert set(rows["types"][real].tolist()) == {first, second} and not rows["types"][~real].any()
        assert (seps == (1 if first == second else 2)).all()
        assert (rows["row_weights"] == (pattern == BIDIRECTIONAL)).all()
        if first != second:
            part = np.arange(29) >= rows["types"].argmax(1)[:, None]
            assert (rows["types"] == np.where(part & real, second, np.where(real, first, 0))).all()
            assert (rows["weights"] * part).any() and (rows["weights"] * ~part).any()
    rows = {key: x[out["pattern"] == SEQ2SEQ] for key, x in out.items()}
    begin = rows["types"].argmax(1)
    assert (rows["targets"][np.arange(len(begin)), begin] > rows["targets"][:, 1]).all() and not rows["label"].any()
    label = out["label"][out["pattern"] == BIDIRECTIONAL]
    assert abs(label.mean() - 0.5) < 4 * 0.5 / len(label) ** 0.5


def test_who_sees_whom(english):
    """Against the paper's figure 1, place by place, on rows of the corruption."""
    out = drawn(Patterns(Pairs(Masking(english, 29))), 60)
    see = np.asarray(masks.patterns({key: jnp.asarray(x) for key, x in out.items()}).dense())
    for row, pattern, types, segments in zip(see, out["pattern"], out["types"], out["segments"]):
        for i in range(29):
            for j in range(29):
                target = types == TYPES[SEQ2SEQ][1]
                wanted = [True, j <= i, j >= i, not target[j] or target[i] and j <= i][pattern] and segments[i] and segments[j]
                assert row[i, j] == bool(wanted)
    assert set(out["pattern"].tolist()) == {0, 1, 2, 3}


def test_features_readout_and_settings(english):
    patterns = Patterns(Pairs(Masking(english, 29)), (0, 0, 0, 1))
    found = drawn(patterns, 3)
    assert set(found) == set(patterns.features) and {key: x.dtype.name for key, x in found.items() if x.ndim == 1} == {
        "label": "int32", "row_weights": "float32", "pattern": "int32"}
    read = drawn(patterns.readout(), 3)
    assert (read["weights"] == found["weights"]).all() and (read["tokens"][read["weights"] > 0] == english.mask).all()
    for wrong in ((0.5, 0.5), (0.5, 0.5, 0.5, -0.5), (0.1, 0.1, 0.1, 0.1)):
        with pytest.raises(UserError, match="bidirectional, left to right, right to left, seq2seq must be four shares"):
            Patterns(Pairs(Masking(english, 29)), wrong)
