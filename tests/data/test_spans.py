import collections
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.order import counter
from ptmjax.data.spans import Spans, counts, lengths, noise
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.types import UserError


def rng(record=0, epoch=0):
    return counter(0, "t", record, epoch)


class Ids:
    """32100 ids as T5's: pad 0, EOS 1, unk 2, 100 sentinels."""

    size, pad, unk, eos, sentinels = 32100, 0, 2, 1, 100
    ordinary = np.arange(3, 32000, dtype=np.int32)


@pytest.mark.parametrize("inputs, raw, targets", [(128, 141, 29), (256, 284, 58), (512, 568, 114), (1024, 1137, 229)])
def test_lengths(inputs, raw, targets):
    """T5's: 512 inputs are 568 tokens before corruption and 114 targets, EOS in both (pitfall 11)."""
    assert lengths(inputs) == (raw, targets)
    spans = Spans(Ids(), inputs)
    assert (spans.raw, spans.targets) == (raw, targets)
    out = spans({"tokens": np.arange(3, 3 + raw, dtype=np.int32)}, rng(), [])
    assert out["tokens"].shape == (inputs,) and out["targets"].shape == (targets,)
    assert out["segments"].all() and out["decoder_segments"].all()  # not one place of padding
    longer = Spans(Ids(), inputs)({"tokens": np.arange(3, 4 + raw, dtype=np.int32)}, rng(), [])  # what is beyond is cut off
    assert all((longer[key] == x).all() for key, x in out.items())


@settings(derandomize=True, deadline=None)
@given(st.integers(3, 600), st.floats(0.02, 0.9), st.floats(1, 12))
def test_lengths_are_the_most_that_fit(inputs, rate, mean):
    raw, targets = lengths(inputs, rate, mean)
    k, s = counts(raw, rate, mean)
    assert raw - k + s + 1 <= inputs and k + s + 1 == targets
    k, s = counts(raw + 1, rate, mean)
    assert raw + 1 - k + s + 1 > inputs


def test_golden():
    """Pitfall 12: sentinels count down from the last id, the decoder's inputs are the targets one on, from pad."""
    text = {"tokens": np.arange(10, 18, dtype=np.int32)}
    want = [False, True, True, False, False, True, False, True]
    spans = Spans(Ids(), 16, rate=0.5, mean=4 / 3)
    at = next(i for i in range(1000) if noise(8, 0.5, 4 / 3, rng(i)).tolist() == want)
    out = {key: x.tolist() for key, x in spans(text, rng(at), []).items()}
    cut = lambda key, segments: [x for x, s in zip(out[key], out[segments]) if s]
    assert cut("tokens", "segments") == [10, 32099, 13, 14, 32098, 16, 32097, 1]
    assert cut("targets", "decoder_segments") == [32099, 11, 12, 32098, 15, 32097, 17, 1]
    assert cut("decoder_tokens", "decoder_segments") == [0, 32099, 11, 12, 32098, 15, 32097, 17]
    assert out["weights"] == out["decoder_segments"]
    assert [out[key][8:] == [0] * len(out[key][8:]) for key in out] == [True] * 6
    assert {key: x.dtype.name for key, x in spans(text, rng(), []).items()} == {
        key: "float32" if key == "weights" else "int32" for key in Spans.features}
    assert [float(w) for w in spans.readout()(text, rng(at), [])["weights"]][:8] == [0, 1, 0, 0, 1, 0, 1, 0]


def back(out):
    """The text from inputs and targets alone."""
    inputs, targets = out["tokens"][out["segments"] > 0].tolist(), out["targets"][out["decoder_segments"] > 0].tolist()
    assert inputs[-1] == targets[-1] == 1 and 1 not in inputs[:-1] + targets[:-1]
    found = {}
    for id in targets[:-1]:
        if id >= 32000:
            found[id] = at = []
        else:
            at.append(id)
    used = [id for id in inputs if id >= 32000]
    assert used == list(found) == [32099 - i for i in range(len(used))]
    assert all(found.values())  # no empty span
    return list(itertools.chain(*(found.get(id, [id]) for id in inputs[:-1])))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(3, 80), st.floats(0.05, 0.8), st.floats(1, 6), st.integers(0, 10**6))
def test_inputs_and_targets_give_back_the_text(sizes, inputs, rate, mean, seed):
    spans = Spans(Ids(), inputs, rate=rate, mean=mean)
    generator = np.random.default_rng(seed)
    texts = [{"tokens": generator.integers(3, 32000, n).astype(np.int32)} for n in sizes]
    out = spans.rows(texts, [rng(i, seed) for i in range(len(sizes))], [])
    for i, text in enumerate(texts):
        row = {key: x[i] for key, x in out.items()}
        want = text["tokens"][: spans.raw].tolist()
        assert back(row) == want
        for key, x in spans(text, rng(i, seed), []).items():  # the rows are what each is alone
            np.testing.assert_array_equal(x, row[key])
        k, s = counts(len(want), rate, mean)
        assert row["decoder_segments"].sum() == k + s + 1
        if len(want) > 1:
            hidden = noise(len(want), rate, mean, rng(i, seed))
            assert not hidden[0] and hidden[-1] and hidden.sum() == k  # begins with a run that stays
            assert [t for t in row["targets"].tolist() if 3 <= t < 32000] == [t for t, h in zip(want, hidden) if h]


def test_short_texts_never_give_an_empty_target():
    spans = Spans(Ids(), 16)
    of = lambda n: spans({"tokens": np.arange(10, 10 + n, dtype=np.int32)}, rng(), [])
    real = lambda out: (out["tokens"][out["segments"] > 0].tolist(), out["targets"][out["decoder_segments"] > 0].tolist())
    assert real(of(1)) == ([32099, 1], [32099, 10, 1])  # T5 would leave it whole
    assert real(of(2)) == ([10, 32099, 1], [32099, 11, 1])
    assert real(of(0)) == ([1], [1])  # nothing is there to predict but the end
    for n in range(1, 17):
        assert ((of(n)["targets"] >= 10) & (of(n)["targets"] < 26)).any()
        assert spans.readout()({"tokens": np.arange(10, 10 + n, dtype=np.int32)}, rng(), [])["weights"].sum() >= 1
    assert spans.readout()({"tokens": np.zeros(0, np.int32)}, rng(), [])["weights"].sum() == 0


def test_eos_stands_behind_what_was_cut_off():
    """Pitfall 34: of 5 .. 14 in a row for fewer, EOS is the last of inputs and targets; what fits exactly keeps it too."""
    for n in (3, 10):
        out = Spans(Ids(), 4)({"tokens": np.arange(5, 5 + n, dtype=np.int32)}, rng(), [])
        assert (out["tokens"].tolist(), out["targets"].tolist()) == ([5, 6, 32099, 1], [32099, 7, 1])


def test_extremes():
    text = np.arange(10, 20, dtype=np.int32)
    many = Spans(Ids(), 16, rate=0.9, mean=1)
    assert back(many({"tokens": text}, rng(), [])) == text.tolist()
    assert counts(10, 0.9, 1) == (9, 1) and counts(10, 0.5, 1) == (5, 5) and counts(10, 0.01, 3) == (1, 1) and counts(10, 0.9, 100) == (9, 1)
    assert noise(10, 0.5, 1, rng()).tolist() == [False, True] * 5
    assert noise(10, 0.9, 1, rng()).tolist() == [False] + [True] * 9
    assert noise(0, 0.15, 3, rng()).tolist() == [] and noise(1, 0.15, 3, rng()).tolist() == [True]


def test_partitions_are_uniform():
    """5 of 9 tokens in 2 spans: 4 ways to part the noise, 3 to part the others: all 12 masks, each with chance 1/12."""
    found = collections.Counter(tuple(noise(9, 5 / 9, 2.5, rng(i)).tolist()) for i in range(6000))
    assert len(found) == 12
    chi = sum((n - 500) ** 2 / 500 for n in found.values())
    assert chi < 31.3  # the .999 quantile of 11 degrees of freedom


def test_density_and_span_lengths():
    """At 568 tokens: 85 noise tokens in 28 spans, always; span lengths follow the law of a random partition."""
    k, s, n = 85, 28, 3000
    out = np.stack([noise(568, 0.15, 3.0, rng(i)) for i in range(n)])
    assert (out.sum(1) == k).all() and (np.diff(out, axis=1, prepend=False) & out).sum(1).tolist() == [s] * n
    assert not out[:, 0].any() and out[:, -1].all()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], out.ravel(), [False]]).astype(int)))
    lengths = edges[1::2] - edges[::2]
    assert len(lengths) == n * s and abs(lengths.mean() - k / s) < 1e-9
    share = np.bincount(lengths, minlength=6)[1:6] / len(lengths)
    law = np.cumprod([(s - 1) / (k - 1), *((k - s - i) / (k - 2 - i) for i in range(4))])  # P(first part = j) = C(k-1-j, s-2) / C(k-1, s-1)
    assert abs(share - law).max() < 0.006  # four standard deviations
    middle = out[:, 100:468].mean(0)
    assert abs(middle.mean() - 0.15) < 0.005 and abs(middle - 0.15).max() < 5 * (0.15 * 0.85 / n) ** 0.5


def test_masks_are_fresh_by_epoch_and_record_and_else_the_same():
    spans, text = Spans(Ids(), 64), {"tokens": np.arange(3, 73, dtype=np.int32)}
    text["tokens"].flags.writeable = False
    of = lambda *place: spans(text, rng(*place), [])["tokens"].tolist()
    assert of(3, 0) == of(3, 0)
    assert of(3, 0) != of(3, 1) and of(3, 0) != of(4, 0)


def test_readout_scores_the_first_token_of_each_span(english):
    v = SentencePiece(english.path, sentinels=100)
    spans, text = Spans(v, 64), {"tokens": np.array([v.unk if i % 5 == 0 else 5 + i for i in range(70)], np.int32)}
    trained, read = ([m(text, rng(i), []) for i in range(50)] for m in (spans, spans.readout()))
    for a, b in zip(trained, read):
        assert all((a[key] == b[key]).all() for key in a if key != "weights")
        after = np.append(False, b["targets"][:-1] >= v.size - 100) & (b["decoder_segments"] > 0)
        assert (b["weights"] == after * np.isin(b["targets"], v.ordinary)).all() and after.sum() == (b["targets"] >= v.size - 100).sum()
        assert b["weights"].sum() < a["weights"].sum() == a["decoder_segments"].sum()
    assert sum(b["weights"].sum() for b in read) > 100
    assert any(v.unk in a["targets"] for a in trained)
    assert spans.view == "" and "first token of every span" in spans.readout().view


def test_bound_is_the_unigram_of_words(english):
    v = SentencePiece(english.path, sentinels=100)
    counts = np.zeros(v.size, np.int64)
    counts[[5, 6, v.unk, v.size - 1]] = 3, 1, 100, 100  # of special ids nothing is counted
    found = Spans(v, 64).bound(counts)
    assert found == {"unigram": pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25))), "majority": 0.75}


def test_features_and_pickle(english):
    spans = Spans(SentencePiece(english.path, sentinels=100), 64)
    out = spans({"tokens": np.array([5, 6], np.int32)}, rng(), [])
    assert tuple(out) == Spans.features
    again = pickle.loads(pickle.dumps(spans))
    assert len(pickle.dumps(spans)) < 1000 and (again({"tokens": np.array([5, 6], np.int32)}, rng(), [])["tokens"] == out["tokens"]).all()


def test_settings_that_cannot_be(english):
    with pytest.raises(UserError, match="of 568 tokens makes 28 spans, SentencePiece.* has 27 sentinels"):
        Spans(SentencePiece(english.path, sentinels=27), 512)
    assert Spans(SentencePiece(english.path, sentinels=28), 512).targets == 114
    with pytest.raises(UserError, match="has 0 sentinels"):
        Spans(english, 64)
    for wrong in (dict(rate=0.0), dict(rate=1.0), dict(mean=0.5)):
        with pytest.raises(UserError, match="span corruption: rate"):
            Spans(Ids(), 64, **wrong)
    with pytest.raises(UserError, match="512 inputs of span corruption give 114 targets, 113 are too few"):
        Spans(Ids(), 512, 113)
    assert Spans(Ids(), 512, 120)({"tokens": np.arange(3, 571, dtype=np.int32)}, rng(), [])["targets"].shape == (120,)
    with pytest.raises(UserError, match="inputs is 2"):
        Spans(Ids(), 2)
    ids = Ids()
    ids.eos = None
    with pytest.raises(UserError, match="lacks eos"):
        Spans(ids, 64)({"tokens": np.array([5], np.int32)}, rng(), [])
