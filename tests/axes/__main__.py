"""Many operators with parts of different axes; see `tests.fuzz` for the options.

    python -m tests.axes --count 600 --seed 0

In turn `solve` with its report and derivatives, `layers` of a ragged system, and `given` Jacobians
of a scan.
"""

from __future__ import annotations

from tests.axes.axes_trials import KINDS, try_case
from tests.fuzz import main


def attempt(seed: int, index: int) -> tuple[str, str]:
    """An operator and how it fails."""
    turn, kind = divmod(index, len(KINDS))
    outcome = try_case(sorted(KINDS)[kind], seed, turn)
    return outcome.text, outcome.message


if __name__ == "__main__":
    main("tests.axes", attempt)
