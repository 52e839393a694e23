"""Many steps that decide by what they make; see `tests.fuzz` for the options.

python -m tests.extrema --count 200 --seed 0
"""

from __future__ import annotations

from tests.extrema.extrema_compared import TOLERANCE, tried
from tests.extrema.extrema_steps import Case
from tests.fuzz import main


def attempt(seed: int, index: int) -> tuple[str, str]:
    """A step and how far its derivatives are off."""
    case = Case.drawn(seed, index)
    (error,) = tried(case)
    if error is None:
        return f"{case} | rounding moves lax.scan itself as far", ""
    return str(case), "" if error <= TOLERANCE[case.dtype] else f"is {error} off"


if __name__ == "__main__":
    main("tests.extrema", attempt)
