"""What the tests and the benchmarks share: problems, ways to differentiate them, comparisons.

A family of generated steps (`step_cases`), each a `Problem` that any function with the contract of
`jax.lax.scan` can run; the modes in which its derivatives are taken (`DERIVATIVE_MODES`); and the
comparison of results with those of `jax.lax.scan`: outputs to the last bit (`compare_outputs`),
derivatives up to what the problem's own rounding allows (`assert_derivatives_close`).

Example:
  >>> import jax, parscan_bp
  >>> case = step_cases(1)[0]
  >>> problem = case.make(seed=0)
  >>> floats = problem.floats()
  >>> reference = evaluator(jax.lax.scan, problem, ["jvp", "hessian"])
  >>> tolerance = tolerances(problem, ulp_sensitivity(reference, floats))
  >>> got = evaluator(parscan_bp.scan, problem, ["jvp", "hessian"])(floats)
  >>> assert_derivatives_close(got, reference(floats), tolerance, case=case.name)
"""

from tests.family.arrays import array
from tests.family.cases import STEPS, StepCase, step_cases
from tests.family.cells import Parts
from tests.family.compare import (
    assert_derivatives_close,
    compare_outputs,
    tolerances,
    ulp_sensitivity,
)
from tests.family.compile import jit_once
from tests.family.features import FEATURES
from tests.family.modes import DERIVATIVE_MODES, evaluator, modes_for
from tests.family.problem import Draw, Problem, float_leaves, is_float
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
