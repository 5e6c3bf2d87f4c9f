"""The loss as a function of model and data size, L(N, D) = E + A / N^alpha + B / D^beta, fitted to runs.

Hoffmann et al. 2022, "Training compute-optimal large language models": section 3.2 (parabolas of equal FLOPs) and
section 3.3 (the parametric fit, equations 2 to 4).
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

DELTA = 1e-3  # of the Huber loss of log losses (section 3.3)
STEEPEST = 3.0  # bound of alpha and beta
LEAST_E = 0.01  # bound of E, as a share of the smallest loss
FEWEST_PAIRS = 8  # of N and D; the law has five numbers
INTERVAL = (10, 90)  # percentiles of the bootstrap (appendix D.2)
EXPONENTS = (0.1, 0.3, 0.6, 1.2)  # from which fits start
SHARES = ((0.5, 0.25, 0.25), (0.8, 0.1, 0.1), (0.1, 0.45, 0.45))  # of E, of N and of D in the loss


@dataclasses.dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats per token."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    is_determined: bool = True  # neither E nor an exponent is at a bound of the fit

    def loss(self, parameters: float, tokens: float) -> float:
        """Returns the loss of a model with N parameters after D tokens."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    @property
    def size_exponent(self) -> float:
        """The exponent a of the best N ~ C^a at FLOPs C ~ N D (equation 4)."""
        return self.beta / (self.alpha + self.beta)


@dataclasses.dataclass(frozen=True)
class Points:
    """Runs: N, D and the validation loss of each."""

    parameters: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def suffice(self) -> bool:
        """Whether they can determine a law: eight pairs of N and D, of three sizes and three numbers of tokens."""
        pairs = set(zip(self.parameters, self.tokens, strict=True))
        return len(pairs) >= FEWEST_PAIRS and all(len(set(each)) >= 3 for each in (self.parameters, self.tokens))

    def take(self, indices: np.ndarray) -> "Points":
        """Returns some of the runs."""
        return Points(self.parameters[indices], self.tokens[indices], self.losses[indices])


def fit(points: Points, start: Law | None = None) -> Law:
    """Returns the law with the least sum of Huber losses between its logarithm and that of the losses (equation 3).

    Args:
      points: runs that `suffice`.
      start: a law to start from; by default many starts are tried, and the best fit is returned.
    """
    middle = [float(np.mean(np.log(values))) for values in (points.parameters, points.tokens)]
    log_n, log_d = np.log(points.parameters) - middle[0], np.log(points.tokens) - middle[1]
    log_l = np.log(points.losses)

    def terms(x: np.ndarray) -> np.ndarray:  # E, A / N^alpha and B / D^beta of each run
        a, b, e, alpha, beta = x
        return np.stack([np.full_like(log_n, np.exp(e)), np.exp(a - alpha * log_n), np.exp(b - beta * log_d)])

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.log(terms(x).sum(0)) - log_l

    def slopes(x: np.ndarray) -> np.ndarray:
        of_e, of_n, of_d = (each := terms(x)) / each.sum(0)
        return np.stack([of_n, of_d, of_e, -of_n * log_n, -of_d * log_d], 1)

    least = np.log(LEAST_E * points.losses.min())
    bounds = ([-np.inf, -np.inf, least, 0, 0], [np.inf] * 3 + [STEEPEST, STEEPEST])
    options: dict[str, Any] = {"jac": slopes, "bounds": bounds, "loss": "huber", "f_scale": DELTA, "max_nfev": 300}
    solve = lambda x: least_squares(residuals, x, **options, ftol=1e-14, xtol=1e-14, gtol=1e-14)
    best = min((solve(x) for x in _starts(points, start, middle)), key=lambda found: found.cost)
    a, b, e, alpha, beta = map(float, best.x)
    logs = (e, a + alpha * middle[0], b + beta * middle[1])
    inside = e > least + 0.05 and all(1e-3 < exponent < 0.999 * STEEPEST for exponent in (alpha, beta))
    E, A, B = (float(np.exp(each)) for each in logs)
    return Law(E, A, B, alpha, beta, inside)


def _starts(points: Points, start: Law | None, middle: Sequence[float]) -> list[np.ndarray]:
    """Returns where fits start: logarithms of the terms at the middle of all runs, and exponents."""
    if start is not None:
        a, b = np.log(start.A) - start.alpha * middle[0], np.log(start.B) - start.beta * middle[1]
        inside = [min(max(exponent, 1e-3), STEEPEST - 1e-3) for exponent in (start.alpha, start.beta)]
        return [np.array([a, b, np.log(max(start.E, 2 * LEAST_E * points.losses.min())), *inside])]
    level = float(np.exp(np.mean(np.log(points.losses))))
    return [
        np.array([np.log(of_n * level), np.log(of_d * level), np.log(of_e * level), alpha, beta])
        for (of_e, of_n, of_d), alpha, beta in itertools.product(SHARES, EXPONENTS, EXPONENTS)
    ]


def bootstrap(points: Points, law: Law, resamples: int = 200, seed: int = 0) -> list[Law]:
    """Returns the fits of random samples of the runs, drawn with replacement; those with fewer than five pairs of N
    and D are drawn again.
    """
    rng, laws = np.random.default_rng(seed), []
    while len(laws) < resamples:
        indices = rng.integers(len(points), size=len(points))
        sample = points.take(indices)
        if len(set(zip(sample.parameters, sample.tokens, strict=True))) >= 5:
            laws.append(fit(sample, law))
    return laws


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 10th and the 90th percentile."""
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Parabola:
    """The parabola through the losses of one budget, in log N; its lowest point is the best size (section 3.2)."""

    coefficients: tuple[float, float, float]  # of (log N)^2, log N and 1
    parameters: float | None  # N of the lowest point; None if it is outside the sizes of the runs, or there is none
    loss: float | None

    def at(self, parameters: float) -> float:
        """Returns the loss at N."""
        return float(np.polyval(self.coefficients, np.log(parameters)))


def parabola(parameters: Sequence[float], losses: Sequence[float]) -> Parabola | None:
    """Returns the parabola through the losses of a budget; None for fewer than three sizes."""
    if len(set(parameters)) < 3:
        return None
    x = np.log(parameters)
    middle = float(np.mean(x))
    a, b, c = map(float, np.polyfit(x - middle, losses, 2))
    coefficients = (a, b - 2 * a * middle, c - b * middle + a * middle**2)
    lowest = middle - b / (2 * a) if a > 0 else np.inf
    if not min(x) <= lowest <= max(x):
        return Parabola(coefficients, None, None)
    return Parabola(coefficients, float(np.exp(lowest)), c - b**2 / (4 * a))


def exponent(budgets: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Returns a of sizes ~ budgets^a; None for fewer than two."""
    return float(np.polyfit(np.log(budgets), np.log(sizes), 1)[0]) if len(set(budgets)) > 1 else None
