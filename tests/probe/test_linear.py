"""The classifier: what was planted is found, what is not there is not, and its least is the least."""
import numpy as np
import pytest
from scipy import sparse, special

from ptmjax.probe import linear


def planted(n=600, width=12, classes=3, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width))
    scores = x @ rng.normal(size=(width, classes)) * 3
    return x, np.where(rng.random(n) < noise, rng.integers(classes, size=n), scores.argmax(1)), rng.random(n) < 0.2


def test_planted_labels_are_found():
    x, y, validation = planted()
    l2, classifier = linear.choose(x[:500], y[:500], validation[:500], 3)
    assert (classifier.classes(x[500:]) == y[500:]).mean() > 0.93 and l2 == min(linear.PENALTIES)  # without noise


def test_random_labels_are_at_chance_and_choose_a_strong_penalty():
    x, _, validation = planted(2000, 40)
    y = np.random.default_rng(1).integers(3, size=2000)
    l2, classifier = linear.choose(x[:1000], y[:1000], validation[:1000], 3)
    assert l2 >= 0.1 and abs((classifier.classes(x[1000:]) == y[1000:]).mean() - 1 / 3) < 0.05


@pytest.mark.parametrize("l2", [1e-3, 1.0])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_its_least_is_the_least(kind, l2):
    """By the conditions of the least of a convex function, computed another way."""
    x, y, _ = planted(noise=0.3)
    found = linear.fit(kind(x), y, 3, l2)
    slope = (special.softmax(x @ found.weights + found.bias, axis=1) - np.eye(3)[y]) / len(x)
    assert np.abs(x.T @ slope + l2 * found.weights).max() < 2e-6 and np.abs(slope.sum(0)).max() < 2e-6
    again = linear.fit(kind(x), y, 3, l2, linear.Linear(np.ones((12, 3)), np.ones(3)))
    np.testing.assert_allclose(again.weights, found.weights, atol=1e-3)


def test_it_is_scikit_learns():
    model = pytest.importorskip("sklearn.linear_model")
    x, y, _ = planted(noise=0.3)
    theirs = model.LogisticRegression(C=1 / (0.01 * len(x)), tol=1e-8, max_iter=5000).fit(x, y)
    np.testing.assert_allclose(linear.fit(x, y, 3, 0.01).log_chances(x), theirs.predict_log_proba(x), atol=1e-4)


def test_scale():
    x = np.array([[1.0, 5, 0], [3, 5, 1], [5, 5, 5]])
    scaled = linear.Scale.of(x)(x)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(0), [1, 0, 1])


def test_balanced():
    y, found = np.array([0, 0, 0, 1, 2, 2]), np.array([0, 0, 1, 1, 0, 2])
    np.testing.assert_allclose(linear.recalls(found, y, 4)[:3], [2 / 3, 1, 0.5])
    assert np.isnan(linear.recalls(found, y, 4)[3])
    w = linear.weights_of_classes(y)
    assert ((found == y) * w).sum() / w.sum() == pytest.approx((2 / 3 + 1 + 0.5) / 3)
