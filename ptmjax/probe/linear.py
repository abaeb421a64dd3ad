"""Multinomial logistic regression: what a linear classifier reads off features.

N rows, D features, C classes. Features are dense [N, D] or a SciPy sparse matrix (counts of words).
"""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, sparse, special

PENALTIES = tuple(10.0**k for k in range(-5, 2))  # of L2; the one with the least loss on a validation split is taken
STEPS = 1000


class Linear(NamedTuple):
    weights: np.ndarray  # [D, C]
    bias: np.ndarray  # [C]

    def log_chances(self, x) -> np.ndarray:
        """[N, C]."""
        return special.log_softmax(x @ self.weights + self.bias, axis=1)

    def classes(self, x) -> np.ndarray:
        """[N]: the likeliest class of each row."""
        return self.log_chances(x).argmax(1)


class Scale(NamedTuple):
    """Of features, from the rows that are trained on: mean 0 and deviation 1; a feature that never changes becomes 0."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> "Scale":
        x = np.asarray(x, np.float64)
        deviation = x.std(0)
        return cls(x.mean(0), np.where(deviation > 1e-12 * np.abs(x).max(0, initial=0), deviation, np.inf))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (np.asarray(x, np.float64) - self.mean) / self.deviation


def fit(x, y: np.ndarray, classes: int, l2: float, start: Linear | None = None) -> Linear:
    """The least of mean cross entropy + l2 / 2 * |weights|^2 (the bias is free), by L-BFGS in float64, to a gradient of 1e-6. The function
    is convex: from where it starts, zeros without `start`, decides only how long it takes.

    It is sought along the principal axes of dense features, each in the unit of a bound on its curvature: states of an encoder nearly lie
    in a few directions, and along the features themselves it takes ten times as many steps.
    """
    n, width = x.shape
    one, axes = np.eye(classes)[y] / n, None
    if not sparse.issparse(x):
        power, axes = np.linalg.eigh(x.T @ x / n)
        x = x @ axes
    else:
        power = np.asarray(x.multiply(x).mean(0)).ravel()
    unit = 1 / np.sqrt(np.maximum(power, 0) / 2 + l2)[:, None]
    turn = lambda w, back=False: w if axes is None else (axes if back else axes.T) @ w
    transposed = x.T.tocsr() if sparse.issparse(x) else np.ascontiguousarray(x.T)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[: width * classes].reshape(width, classes) * unit, flat[width * classes :]
        log = special.log_softmax(x @ w + b, axis=1)
        slope = np.exp(log) / n - one
        gradient = np.concatenate([((transposed @ slope + l2 * w) * unit).ravel(), slope.sum(0)])
        return float(-(one * log).sum() + l2 / 2 * (w * w).sum()), gradient

    begin = np.zeros((width + 1) * classes) if start is None else np.concatenate([(turn(start.weights) / unit).ravel(), start.bias])
    how = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": 1e-6, "ftol": 0}
    found = optimize.minimize(loss, begin, jac=True, method="L-BFGS-B", options=how).x
    return Linear(turn(found[: width * classes].reshape(width, classes) * unit, back=True), found[width * classes :])


def choose(x, y: np.ndarray, validation: np.ndarray, classes: int, penalties: Sequence[float] = PENALTIES) -> tuple[float, Linear]:
    """(L2 penalty, classifier): the penalty with the least cross entropy on the rows where `validation` [N] (of equals the greatest)
    when trained on the others; then trained on all rows."""
    train, found, last = ~validation, {}, None
    for l2 in sorted(penalties, reverse=True):
        last = fit(x[train], y[train], classes, l2, last)
        loss = -last.log_chances(x[validation])[np.arange(validation.sum()), y[validation]].mean()
        found[l2] = loss, last
    best = min(found, key=lambda l2: found[l2][0])
    return best, fit(x, y, classes, best, found[best][1])


def recalls(found: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """[C]: of the rows of each class, the share that is found; NaN of a class without rows."""
    return np.array([(found[y == c] == c).mean() if (y == c).any() else np.nan for c in range(classes)])


def weights_of_classes(y: np.ndarray) -> np.ndarray:
    """[N]: so that a weighted accuracy is the balanced one: classes that are there count alike."""
    counts = np.bincount(y)
    return 1 / (counts[y] * (counts > 0).sum())
