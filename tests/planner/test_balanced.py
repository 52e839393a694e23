"""A row is cut where the dearest stretch is cheapest."""

import itertools

import numpy as np
import pytest

from parscan_bp.planner.balanced import balanced

ROWS = [[3, 1, 4, 1, 5, 9, 2, 6], [1] * 5, [0, 0, 0], *np.random.default_rng(0).random((3, 6))]


def dearest(costs, cuts):
    return max(sum(costs[a:b]) for a, b in itertools.pairwise(cuts))


@pytest.mark.parametrize("costs", list(map(list, ROWS)))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_other_cuts_are_better(costs, count):
    cuts, length = balanced(costs, count), len(costs)
    assert cuts[0] == 0 and cuts[-1] == length and sorted(set(cuts)) == cuts
    assert len(cuts) == count + 1
    others = itertools.combinations(range(1, length), count - 1)
    best = min(dearest(costs, [0, *own, length]) for own in others)
    assert np.isclose(dearest(costs, cuts), best)
