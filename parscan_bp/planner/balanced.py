"""A row cut into stretches, the dearest of which is as cheap as can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def balanced(costs: Sequence[float], count: int) -> list[int]:
    """Where a row of costs is cut into so many stretches, none of them empty.

    With s_i the costs, over all cuts 0 = c_0 < ... < c_K = L:

        min max_k (s_{c_k} + ... + s_{c_{k+1} - 1})

    by dynamic programming over the number of stretches; K L^2 sums.

    Args:
      costs: L of them.
      count: K, at most L.

    Returns:
      c_0, ..., c_K.

    Example:
      >>> from parscan_bp.planner.balanced import balanced
      >>> balanced([1, 1, 1, 9, 1], 3)
      [0, 3, 4, 5]
    """
    length = len(costs)
    until = np.concatenate([[0.0], np.cumsum(np.asarray(costs, float))])
    # dearest[j]: of the first j in so many stretches; cut[k][j]: where the last one begins.
    dearest = np.where(np.arange(length + 1) == 0, 0.0, np.inf)
    cut = np.zeros((count + 1, length + 1), int)
    for k in range(1, count + 1):
        before, dearest = dearest, np.full(length + 1, np.inf)
        for j in range(k, length + 1):
            worst = np.maximum(before[:j], until[j] - until[:j])
            cut[k, j] = int(np.argmin(worst))
            dearest[j] = worst[cut[k, j]]
    ends = [length]
    for k in range(count, 0, -1):
        ends.append(int(cut[k, ends[-1]]))
    return ends[::-1]
