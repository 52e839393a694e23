"""Every front end, by solver, method and layer, in every mode of derivative.

A row has problems and modes, and its cells go through both, one on at a time, from a place that is
another one for each row. So each pair of row and mode, of row and problem, and of mode and problem
is there at least once. A run of the suite takes one cell of each row: every row, mode and feature.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

from tests.family import (
    DERIVATIVE_MODES,
    FEATURES,
    assert_derivatives_close,
    evaluator,
    tolerances,
    ulp_sensitivity,
)
from tests.modes.rows import CASES, rows

ROWS = rows()


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row with one of its problems, in a mode; the ``daily`` one is always run."""

    row: str
    problem: str
    mode: str
    daily: bool


def cells():
    modes = list(reversed(DERIVATIVE_MODES))
    for number, (name, row) in enumerate(ROWS.items()):
        problems, turn = list(row.problems), number % len(modes)
        daily = next(m for m in modes[turn:] + modes[:turn] if m not in row.without)
        for k, mode in enumerate(modes):
            if mode not in row.without:
                problem = problems[(k + number) % len(problems)]
                yield Cell(name, problem, mode, mode == daily)


def _param(cell):
    marks = () if cell.daily else pytest.mark.slow
    return pytest.param(cell, marks=marks, id=f"{cell.row}-{cell.problem}-{cell.mode}")


@functools.cache
def reference(theirs, make, mode, double):
    """In the precision of the caller, which is ``double`` or not."""
    problem = make()
    derivative = evaluator(theirs, problem, [mode])
    want = derivative(problem.floats())
    finite = jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), want)
    assert all(jax.tree.leaves(finite)), f"this tests nothing: {finite}"
    return want, tolerances(problem, ulp_sensitivity(derivative, problem.floats()))


@pytest.mark.parametrize("cell", [_param(cell) for cell in cells()])
def test_derivatives_in_every_mode(cell):
    row = ROWS[cell.row]
    double = row.double or jax.config.jax_enable_x64
    with jax.enable_x64(double):
        make = row.problems[cell.problem]
        want, tolerance = reference(row.theirs, make, cell.mode, double)
        at = make()
        got = evaluator(row.ours, at, [cell.mode])(at.floats())
        tolerance = jax.tree.map(lambda t: max(t, row.floor), tolerance)
        assert_derivatives_close(got, want, tolerance, case=cell.problem)


def _pairs(some):
    """Of rows and modes, and of what is in the family of steps: rows, modes and features."""
    found, features = set(), set()
    for cell in some:
        found.add((cell.row, cell.mode))
        if cell.row.startswith("scan by"):
            features |= set(itertools.product((cell.row, cell.mode), CASES[cell.problem].features))
    return found, features


def test_every_pair_is_there():
    pairs, features = _pairs(cells())
    assert pairs == {(n, m) for n, r in ROWS.items() for m in DERIVATIVE_MODES.keys() - r.without}
    scans = [name for name in ROWS if name.startswith("scan by")]
    assert features == set(itertools.product([*scans, *DERIVATIVE_MODES], FEATURES))


def test_each_run_has_every_row_mode_and_feature():
    pairs, features = _pairs(cell for cell in cells() if cell.daily)
    assert {row for row, _ in pairs} == ROWS.keys()
    assert {mode for _, mode in pairs} == DERIVATIVE_MODES.keys()
    assert {feature for _, feature in features} == FEATURES.keys()
