"""Medians, spreads and the bootstrap interval of a ratio of medians."""

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 2000


def spread(samples: ArrayLike) -> float:
    """Interquartile range: the width of the middle half of the samples."""
    low, high = np.percentile(np.asarray(samples), [25, 75])
    return float(high - low)


def ratio_of_medians(numerator: ArrayLike, denominator: ArrayLike) -> float:
    """median(numerator) / median(denominator)."""
    return float(np.median(np.asarray(numerator)) / np.median(np.asarray(denominator)))


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile-bootstrap interval of `ratio_of_medians`, by rounds.

    Whole rounds are drawn with replacement, so what disturbed one round (a busy neighbour,
    a slower clock) disturbs numerator and denominator of the same draws. A side may have several
    samples a round; its median is over all of them, never over means of a round, which skewed
    noise would shift.

    Args:
        numerator: samples, shape (rounds,) or (rounds, samples of a round).
        denominator: samples of the same rounds, likewise.
        level: coverage of the interval.
        seed: of the draws; the interval of the same samples is always the same.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: the two do not come from the same rounds.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3.

    Example:
        >>> low, high = ratio_interval([2.0, 2.1, 1.9], [1.0, 1.0, 1.0])
        >>> low <= 2.0 <= high
        True
    """
    top, bottom = np.asarray(numerator), np.asarray(denominator)
    if top.shape[:1] != bottom.shape[:1] or not top.shape:
        raise ValueError(f"samples must share their rounds, got {top.shape} and {bottom.shape}")
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(top), size=(RESAMPLES, len(top)))
    medians = (np.median(side[draws].reshape(RESAMPLES, -1), axis=1) for side in (top, bottom))
    tail = 50 * (1 - level)
    low, high = np.percentile(np.divide(*medians), [tail, 100 - tail])
    return float(low), float(high)
