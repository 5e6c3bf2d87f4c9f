"""Fits of scaling laws: made-up laws are recovered, intervals cover them, parabolas have the best size."""

import numpy as np
import pytest

from runners.scaling.law import Law, Points, bootstrap, exponent, fit, interval, parabola

# The fit of Hoffmann et al. 2022, and that of Besiroglu et al. 2024 to the same runs.
HOFFMANN = Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
BESIROGLU = Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)


def runs(law, noise=0.0, budgets=(1e12, 3e12, 1e13), sizes=(2e5, 4e5, 8e5, 1.6e6), seed=0):
    """A ladder of runs whose losses are those of a law, with noise."""
    parameters = np.tile(sizes, len(budgets))
    tokens = np.repeat(budgets, len(sizes)) / (6 * parameters)
    factors = np.exp(noise * np.random.default_rng(seed).standard_normal(len(parameters)))
    return Points(parameters, tokens, law.loss(parameters, tokens) * factors)


@pytest.mark.parametrize("law", [HOFFMANN, BESIROGLU, Law(E=0.6, A=30.0, B=3000.0, alpha=0.25, beta=0.55)])
def test_a_law_is_recovered_from_four_sizes_and_three_budgets(law):
    found = fit(runs(law))
    assert found.alpha == pytest.approx(law.alpha, rel=0.001)
    assert found.beta == pytest.approx(law.beta, rel=0.001)
    assert pytest.approx(law.E, rel=0.001) == found.E
    assert pytest.approx(law.A, rel=0.01) == found.A
    assert pytest.approx(law.B, rel=0.01) == found.B
    assert found.is_determined


def test_exponents_are_within_two_percent_with_noise_and_an_outlier():
    points = runs(HOFFMANN, noise=2e-4, budgets=(1e12, 1e13, 1e14, 1e15), sizes=np.geomspace(1e5, 1e7, 6), seed=3)
    points.losses[4] *= 1.2  # the Huber loss is linear there
    found = fit(points)
    assert found.alpha == pytest.approx(HOFFMANN.alpha, rel=0.02)
    assert found.beta == pytest.approx(HOFFMANN.beta, rel=0.02)


def test_intervals_of_the_bootstrap_cover_the_law():
    covered = 0
    for seed in range(3):
        points = runs(HOFFMANN, noise=2e-3, seed=seed)
        found = fit(points)
        laws = bootstrap(points, found, resamples=40)
        low, high = interval([law.loss(6.4e6, 1e9) for law in laws])
        covered += low <= HOFFMANN.loss(6.4e6, 1e9) <= high
        assert low < found.loss(6.4e6, 1e9) < high
    assert covered >= 2, "an interval of 80% covers the value in four of five cases"
    assert bootstrap(points, found, resamples=2) == bootstrap(points, found, resamples=2)


def test_few_runs_do_not_suffice():
    assert runs(HOFFMANN, budgets=(1e12, 1e13)).suffice
    assert not runs(HOFFMANN, sizes=(2e5, 8e5), budgets=(1e12, 3e12, 1e13, 3e13)).suffice, "two sizes"
    assert not runs(HOFFMANN, sizes=(2e5, 4e5, 8e5), budgets=(1e12, 3e12)).suffice, "six runs"


def test_runs_that_determine_nothing():
    places = [(n, d) for n in (32, 48, 64) for d in (10, 40, 100)]
    falling = Points(*np.array([(1e3 * n, 1e3 * d, 5.5 - n / 100 - d / 300) for n, d in places]).T)
    assert not fit(falling).is_determined, "E is at its bound"
    flat = Points(*(np.array(values) for values in ([1e5, 2e5, 4e5, 1e5, 2e5], [1e6, 1e6, 1e6, 2e6, 2e6], [2.0] * 5)))
    assert not fit(flat).is_determined


def test_the_best_size_grows_with_the_exponent_of_the_law():
    """Equation 4: the least loss at C = 6 N D has N ~ C^(beta / (alpha + beta)), and so have the parabolas."""
    assert HOFFMANN.size_exponent == pytest.approx(0.28 / 0.62)
    assert Law(E=1, A=1, B=1, alpha=0.5, beta=0.5).size_exponent == 0.5
    budgets, lowest = (1e18, 1e19, 1e20), []
    for budget in budgets:
        middle = (0.34 * 406.4 / (0.28 * 410.7) * (budget / 6) ** 0.28) ** (1 / 0.62)
        sizes = middle * np.geomspace(0.7, 1.5, 5)
        fitted = parabola(sizes, HOFFMANN.loss(sizes, budget / 6 / sizes))
        assert fitted.parameters == pytest.approx(middle, rel=0.01)
        assert fitted.loss == pytest.approx(HOFFMANN.loss(middle, budget / 6 / middle), rel=1e-4)
        assert fitted.at(fitted.parameters) == pytest.approx(fitted.loss)
        lowest.append(fitted.parameters)
    assert exponent(budgets, lowest) == pytest.approx(HOFFMANN.size_exponent, rel=0.02)


def test_parabolas_without_a_lowest_point():
    assert parabola([1e5, 2e5], [2.0, 1.9]) is None
    assert parabola([1e5, 2e5, 4e5], [2.0, 1.9, 1.85]).parameters is None, "lower beyond the largest size"
    assert parabola([1e5, 2e5, 4e5], [1.9, 2.0, 1.9]).parameters is None, "open below"
    assert exponent([1e12], [1e5]) is None
