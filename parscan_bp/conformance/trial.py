"""One generated step by two scans, in every mode: what differs."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.conformance.cases import StepCase
from parscan_bp.conformance.compare import (
    assert_derivatives_close,
    compare_outputs,
    tolerances,
    ulp_sensitivity,
)
from parscan_bp.conformance.compile import jit_once
from parscan_bp.conformance.modes import DERIVATIVE_MODES, Mode, modes_for
from parscan_bp.conformance.problem import Floats, Problem, is_float
from parscan_bp.conformance.target import Scan
from parscan_bp.types import PyTree


class Outcome(enum.StrEnum):
    """What came of a mode, and its mark in the table."""

    ALIKE = "."
    DIFFERS = "D"
    RAISES = "E"
    REFUSED = "n"


FAILURES = (Outcome.DIFFERS, Outcome.RAISES)


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one case in one mode.

    Attributes:
      case: the generated step.
      mode: "types" for structure, shapes, dtypes and weak types of the results, "value", or one of
        `DERIVATIVE_MODES`.
      outcome: see `Outcome`.
      detail: what differs or was raised, and where.
    """

    case: StepCase
    mode: str
    outcome: Outcome
    detail: str = ""


def _value(scan: Scan, problem: Problem) -> dict[str, list[Any]]:
    """All results; what has no tangent apart, which is compared to the last bit."""
    leaves = jax.tree.leaves(problem.run(scan))
    floats = [leaf for leaf in leaves if is_float(leaf)]
    return {"floats": floats, "others": [leaf for leaf in leaves if not is_float(leaf)]}


MODES: dict[str, Mode] = {"value": _value} | DERIVATIVE_MODES
USUAL = (
    *("value", "value_and_grad", "vjp", "jvp", "jit_grad", "remat", "vmap_grad", "grad_vmap"),
    *("hvp_fwd_over_rev", "hvp_rev_over_fwd", "rev_over_rev", "linearize_and_transpose", "nested"),
)
"""The modes that are tried unless others are asked for."""


def try_case(
    scan: Scan, reference: Scan, case: StepCase, modes: Sequence[str] = USUAL
) -> list[Result]:
    """Runs one case by both scans in those of the modes that it has.

    Args:
      scan: what is tried.
      reference: what is right.
      case: the step.
      modes: keys of `MODES`.

    Returns:
      A result for "types" and for each mode that the case has.
    """
    problem, legal = case.make(), ("value", *modes_for(case))
    names, floats = [mode for mode in modes if mode in legal], problem.floats()
    got, raised = _made(scan, problem, names)
    made = [mode for mode in names if mode in got]
    evaluate = _evaluator(reference, problem, made)
    want, limits = evaluate(floats), _limits(evaluate, problem)
    results = [_types(scan, reference, problem, case)]
    for mode in names:
        if mode in raised:
            results.append(_raised(case, mode, raised[mode]))
            continue
        try:
            if mode == "value":
                compare_outputs(got[mode].pop("others"), want[mode].pop("others"))
            assert_derivatives_close(got[mode], want[mode], limits[mode])
        except AssertionError as error:
            results.append(Result(case, mode, Outcome.DIFFERS, str(error)))
        else:
            results.append(Result(case, mode, Outcome.ALIKE))
    return results


def _made(
    scan: Scan, problem: Problem, modes: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Exception]]:
    """What each mode makes, or raises; all by one program, but for those that raise."""
    floats = problem.floats()
    raised: dict[str, Exception] = {}
    try:
        return _evaluator(scan, problem, modes)(floats), raised
    except Exception as error:
        if len(modes) == 1:
            return {}, {modes[0]: error}
    for mode in modes:
        try:
            _evaluator(scan, problem, [mode]).lower(floats)  # what raises does so here, as a rule
        except Exception as error:
            raised[mode] = error
    left = [mode for mode in modes if mode not in raised]
    parts = [left] if raised and left else [[mode] for mode in left]
    made: dict[str, Any] = {}
    for part in parts:
        found, errors = _made(scan, problem, part)
        made, raised = made | found, raised | errors
    return made, raised


def _types(scan: Scan, reference: Scan, problem: Problem, case: StepCase) -> Result:
    """Structure, shapes, dtypes and weak types, without a run."""
    want = jax.eval_shape(lambda: problem.run(reference))
    try:
        compare_outputs(jax.eval_shape(lambda: problem.run(scan)), want)
    except AssertionError as error:
        return Result(case, "types", Outcome.DIFFERS, str(error))
    except Exception as error:
        return _raised(case, "types", error)
    return Result(case, "types", Outcome.ALIKE)


def _raised(case: StepCase, mode: str, error: Exception) -> Result:
    lines = str(error).strip().splitlines() or [""]
    refused = isinstance(error, NotImplementedError)
    outcome = Outcome.REFUSED if refused else Outcome.RAISES
    words = re.sub(r"id=\d+|0x[0-9a-f]+", "...", lines[0][:300])  # others each time
    return Result(case, mode, outcome, f"{type(error).__name__}: {words}")


def _evaluator(scan: Scan, problem: Problem, modes: Sequence[str]) -> Any:
    """All modes in one program of the float leaves."""

    def evaluate(floats: Floats) -> dict[str, Any]:
        at = problem.with_floats(floats)
        return {mode: MODES[mode](scan, at) for mode in modes}

    return jit_once(evaluate)


def _limits(evaluate: Callable[[Floats], dict[str, Any]], problem: Problem) -> PyTree:
    """How far each leaf may be off by the rounding of the problem itself."""

    def floats_alone(floats: Floats) -> dict[str, Any]:
        made = evaluate(floats)
        if "value" in made:
            made["value"] = {"floats": made["value"]["floats"]}
        return made

    return tolerances(problem, ulp_sensitivity(floats_alone, problem.floats()))
