"""The statistics and the race, on samples whose answers are known."""

import math

import numpy as np
import pytest

from bench.shared import stats, timing


def test_ratio_of_medians_ignores_an_outlier():
    assert stats.ratio_of_medians([2.0, 2.0, 900.0], [1.0, 1.0, 1.0]) == 2.0


def test_spread_is_the_interquartile_range():
    assert stats.spread(np.arange(1.0, 10.0)) == 4.0


def test_interval_of_constant_samples_is_a_point():
    assert stats.ratio_interval([3.0] * 5, [2.0] * 5) == (1.5, 1.5)


def test_interval_is_paired_by_round():
    # Round by round the ratio is 2, while both sides vary a hundredfold.
    times = np.geomspace(1, 100, 41)
    low, high = stats.ratio_interval(2 * times, times)
    assert low == pytest.approx(2.0) and high == pytest.approx(2.0)
    shuffled = np.random.default_rng(0).permutation(times)
    low, high = stats.ratio_interval(2 * times, shuffled)
    assert high / low > 1.5


@pytest.mark.parametrize("laps", [1, 2])
def test_interval_covers_the_true_ratio(laps):
    # Skewed noise, as of timings. 95 % nominal; 200 trials give a standard error of 1.5 %.
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        top = 1.3 * rng.lognormal(0, 0.3, (25, laps))
        low, high = stats.ratio_interval(top, rng.lognormal(0, 0.3, 25), seed=trial)
        hits += low <= 1.3 <= high
    assert 0.88 <= hits / 200 <= 1.0


def test_interval_narrows_with_rounds():
    rng = np.random.default_rng(2)
    widths = []
    for rounds in (15, 1500):
        low, high = stats.ratio_interval(*rng.lognormal(0, 0.2, (2, rounds)))
        widths.append(high - low)
    assert widths[1] < widths[0] / 4


def test_interval_refuses_samples_of_different_rounds():
    with pytest.raises(ValueError, match="share their rounds"):
        stats.ratio_interval([1.0, 2.0], [1.0])


def _race(first, again, candidate):
    return timing.Race(first, again, {"ours": candidate})


def test_comparison_cancels_a_steady_drift():
    # The machine slows down from lap to lap; the candidate, in the middle, is no faster.
    start = 1 + 0.03 * np.arange(20)
    race = _race({"step": start}, {"step": start + 0.02}, {"step": start + 0.01})
    comparison = race.compare("ours", "step")
    assert comparison.speedup == pytest.approx(1.0, abs=1e-3)
    assert comparison.low <= 1.0 <= comparison.high
    assert comparison.again == pytest.approx(1.02, abs=0.01)


def test_comparison_of_equal_programs_is_one_under_skewed_noise():
    rng = np.random.default_rng(3)
    first, again, ours = rng.exponential(1.0, (3, 2000)) + 1
    comparison = _race({"step": first}, {"step": again}, {"step": ours}).compare("ours", "step")
    assert comparison.speedup == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("rest", "program"), [(timing.BACKWARD, timing.FORWARD), (timing.GRADIENT, timing.VALUE)]
)
def test_a_rest_is_the_whole_less_a_part(rest, program):
    whole, part = np.full(16, 10.0), np.full(16, 4.0)
    ours = {timing.VALUE_AND_GRAD: np.full(16, 7.0), program: part}
    plain = {timing.VALUE_AND_GRAD: whole, program: part}
    comparison = _race(plain, plain, ours).compare("ours", rest)
    assert comparison.speedup == 2.0
    assert (comparison.baseline.median, comparison.candidate.median) == (6.0, 3.0)
    assert len(comparison.baseline.seconds) == 2 * len(comparison.candidate.seconds)


def test_rounds_are_interleaved_and_the_baseline_runs_twice():
    order = []
    baseline = {"step": lambda: order.append("A")}
    outcome = timing.race(
        baseline, {"b": {"step": lambda: order.append("B")}}, rounds=4, min_sample=0
    )
    # Once untimed, once timed.
    assert "".join(order).endswith("AABBAA" * 4)
    assert all(len(samples["step"]) == 4 for samples in (outcome.first, outcome.again))


def test_short_programs_are_repeated_within_a_sample():
    calls = []
    timing.race({"step": lambda: calls.append(0)}, {}, rounds=1, min_rounds=1, min_sample=0.01)
    assert len(calls) > 1000


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 3), (math.inf, 6)])
def test_a_budget_cuts_rounds_but_not_below_the_least(budget, rounds):
    outcome = timing.race({"step": lambda: None}, {}, rounds=6, min_rounds=3, budget=budget)
    assert len(outcome.first["step"]) == rounds


def test_race_refuses_no_rounds():
    with pytest.raises(ValueError, match="positive"):
        timing.race({}, {}, rounds=0)
