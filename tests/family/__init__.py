"""What the tests and the benchmarks share: problems, ways to differentiate them, comparisons.

The family of generated steps, the modes and the comparisons are those of `parscan_bp.conformance`.
"""

from parscan_bp.conformance import (
    DERIVATIVE_MODES,
    FEATURES,
    STEPS,
    Draw,
    Parts,
    Problem,
    StepCase,
    assert_derivatives_close,
    compare_outputs,
    evaluator,
    float_leaves,
    is_float,
    jit_once,
    modes_for,
    step_cases,
    tolerances,
    ulp_sensitivity,
)
from tests.family.arrays import array
from tests.family.together import together

__all__ = [
    "DERIVATIVE_MODES",
    "FEATURES",
    "STEPS",
    "Draw",
    "Parts",
    "Problem",
    "StepCase",
    "array",
    "assert_derivatives_close",
    "compare_outputs",
    "evaluator",
    "float_leaves",
    "is_float",
    "jit_once",
    "modes_for",
    "step_cases",
    "together",
    "tolerances",
    "ulp_sensitivity",
]
