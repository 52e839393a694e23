"""Whether a function has the contract of `jax.lax.scan`: ``python -m parscan_bp.conformance``.

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

from parscan_bp.conformance.cases import STEPS, StepCase, step_cases
from parscan_bp.conformance.cells import Parts
from parscan_bp.conformance.compare import (
    assert_derivatives_close,
    compare_outputs,
    tolerances,
    ulp_sensitivity,
)
from parscan_bp.conformance.compile import jit_once
from parscan_bp.conformance.features import FEATURES
from parscan_bp.conformance.modes import DERIVATIVE_MODES, evaluator, modes_for
from parscan_bp.conformance.problem import Draw, Problem, float_leaves, is_float
from parscan_bp.conformance.reference import python_loop
from parscan_bp.conformance.table import details, failed, summary, table
from parscan_bp.conformance.target import Target, target_of
from parscan_bp.conformance.trial import Outcome, Result, try_case

__all__ = [
    "DERIVATIVE_MODES",
    "FEATURES",
    "STEPS",
    "Draw",
    "Outcome",
    "Parts",
    "Problem",
    "Result",
    "StepCase",
    "Target",
    "assert_derivatives_close",
    "compare_outputs",
    "details",
    "evaluator",
    "failed",
    "float_leaves",
    "is_float",
    "jit_once",
    "modes_for",
    "python_loop",
    "step_cases",
    "summary",
    "table",
    "target_of",
    "tolerances",
    "try_case",
    "ulp_sensitivity",
]
