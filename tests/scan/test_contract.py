"""`parscan_bp.scan` against `jax.lax.scan` on the generated family of steps.

Same body, same arguments: every output to the last bit, every derivative up to what the rounding
of the problem allows. A run of the suite takes 30 cases and a few modes of each. The whole family
is marked slow: every case by every solver, in the modes of `CORE` and a fifth of the others, so
that each case is differentiated in every mode by one solver or another.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp
from tests.family import (
    DERIVATIVE_MODES,
    FEATURES,
    STEPS,
    assert_derivatives_close,
    compare_outputs,
    evaluator,
    modes_for,
    tolerances,
    ulp_sensitivity,
)
from tests.modes.rows import FAMILY, NOT_IN_EVERY_MODE

# The first 30 cases deal every flag, feature and way to call (asserted below).
QUICK = FAMILY[:30]

# Solvers by name, each in two configurations that the cases take in turn: lengths are short, so
# the second ones have chunks and levels that end within them.
SOLVERS = {
    "auto": (None, None),
    "sweep": (parscan_bp.Sweep(recompute=False), parscan_bp.Sweep(chunk=4)),
    "associative": (parscan_bp.Associative(), parscan_bp.Associative(collect_chunk=4)),
    "blelloch": (parscan_bp.Blelloch(), parscan_bp.Blelloch(up_levels=1)),
    "chunked": (parscan_bp.Chunked(), parscan_bp.Chunked(chunks=3)),
}
# The modes that every case is differentiated in by every solver, when the whole family runs.
CORE = (
    *("value_and_grad", "jvp", "jacfwd", "hessian"),
    *("rev_over_rev", "rev_over_rev[apart]", "hvp_fwd_over_rev"),
)
# What a named solver may refuse, and the words by which its message has to name the reason.
REFUSALS = {"custom_vjp": "custom_vjp", "while": "while", "effects": "effect|callback"}


def _scan(case, solver):
    """`parscan_bp.scan` by the named solver; a refusal that is allowed skips the test."""
    chosen = SOLVERS[solver][FAMILY.index(case) % 2]

    def scan(*args, **kwargs):
        try:
            return parscan_bp.scan(*args, solver=chosen, **kwargs)
        except NotImplementedError as error:
            for flag in case.flags & REFUSALS.keys():
                if chosen is not None and re.search(REFUSALS[flag], str(error)):
                    pytest.skip(f"{solver} refuses {flag}: {error}")
            raise

    return scan


def _by(items, name):
    return pytest.mark.parametrize(name, [pytest.param(item, id=item.name) for item in items])


@functools.lru_cache(maxsize=2)
def _reference(case, modes):
    """What `lax.scan` gives, and how far from it rounding may take another."""
    problem = case.make()
    derivative = evaluator(lax.scan, problem, modes)
    floats = problem.floats()
    want = derivative(floats)
    finite = jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), want)
    assert all(jax.tree.leaves(finite)), f"{case.name} tests nothing: {finite}"
    return want, tolerances(problem, ulp_sensitivity(derivative, floats))


@functools.lru_cache(maxsize=2)
def _derivatives(case, solver, modes):
    """`{mode: derivative or error}`; as one program unless a mode fails."""
    problem, scan = case.make(), _scan(case, solver)
    floats = problem.floats()
    try:
        return evaluator(scan, problem, modes)(floats)
    except Exception as error:
        if len(modes) == 1:
            return {modes[0]: error}
        return {m: _derivatives.__wrapped__(case, solver, (m,))[m] for m in modes}


def _check(case, solver, mode, modes, reference_modes=None):
    got = _derivatives(case, solver, modes)[mode]
    if isinstance(got, Exception):
        got.add_note(f"{case.name}: {mode}: {solver}")
        raise got
    want, tolerance = _reference(case, reference_modes or modes)
    names = {"case": case.name, "mode": f"{mode} by {solver}"}
    assert_derivatives_close(got, want[mode], tolerance[mode], **names)


def _run_jitted(problem, scan):
    return jax.jit(lambda floats: problem.with_floats(floats).run(scan))(problem.floats())


WAYS_TO_RUN = {
    "eager": lambda problem, scan: problem.run(scan),
    "jit": _run_jitted,
    "eval_shape": lambda problem, scan: jax.eval_shape(lambda: problem.run(scan)),
}


def _check_outputs(case, solver, ways=WAYS_TO_RUN):
    problem, scan = case.make(), _scan(case, solver)
    for way in ways:
        got, want = (WAYS_TO_RUN[way](problem, s) for s in (scan, lax.scan))
        compare_outputs(got, want, case=case.name, mode=way)


def _quick_modes(case):
    """First order one way in turn, and one more mode in turn, so that 30 cases go through all."""
    legal, number = modes_for(case), QUICK.index(case)
    first = [mode for mode in ("value_and_grad", "jvp") if mode in legal]
    others = [mode for mode in DERIVATIVE_MODES if mode not in ("value_and_grad", "jvp")]
    turn = others[number % len(others)]
    return (first[number // 2 % len(first)], *([turn] if turn in legal else []))


def _quick_solver(case):
    """The solvers in turn, the sequential one every other time: short scans are left to it."""
    number = QUICK.index(case)
    return "sweep" if number % 2 else list(SOLVERS)[(number // 2) % len(SOLVERS)]


def _family_modes(case, solver):
    """`CORE`, and of the other modes a fifth: another one for each solver, in turn by case."""
    legal = modes_for(case)
    others = [mode for mode in legal if mode not in CORE]
    turn = (list(SOLVERS).index(solver) + FAMILY.index(case)) % len(SOLVERS)
    return tuple(m for m in legal if m in CORE or m in others[turn :: len(SOLVERS)])


@_by(QUICK, "case")
def test_outputs(case):
    """Jitted for two cases, eager for the next two; the whole family is run both ways."""
    eager = QUICK.index(case) // 2 % 2
    _check_outputs(case, _quick_solver(case), ("eager" if eager else "jit", "eval_shape"))


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(c, m, id=f"{c.name}-{m}")
        for c in QUICK
        if c.flags & NOT_IN_EVERY_MODE
        for m in _quick_modes(c)
    ],
)
def test_derivatives(case, mode):
    """Of what has not every mode; `tests/modes` has the others."""
    _check(case, _quick_solver(case), mode, _quick_modes(case))


@_by([case for case in QUICK if "value_and_grad" in _quick_modes(case)][::5], "case")
def test_eager_gradient(case):
    """Nothing is jitted around the call: the rule sees concrete arrays."""
    want, tolerance = _reference(case, _quick_modes(case))
    got = DERIVATIVE_MODES["value_and_grad"](_scan(case, _quick_solver(case)), case.make())
    limit = tolerance["value_and_grad"]
    assert_derivatives_close(got, want["value_and_grad"], limit, case=case.name, mode="eager")


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, id=f"{case.name}-{mode}")
        for flag in ("custom_vjp", "while")
        for case in [case for case in FAMILY if flag in case.flags][:1]
        for mode in DERIVATIVE_MODES
        if mode not in modes_for(case) and mode in ("jvp", "linearize_and_transpose", "vjp")
    ],
)
def test_what_lax_scan_cannot_differentiate(case, mode):
    """The same type of error, not a number."""
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as want:
        evaluator(lax.scan, case.make(), [mode])(case.make().floats())
    with pytest.raises(want.type):
        evaluator(_scan(case, "auto"), case.make(), [mode])(case.make().floats())


def _seen(cases, field):
    """Values of a field; as text, for `True` and 1 are different unrolls."""
    return {repr(getattr(case, field)) for case in cases}


def _union(cases, field):
    return set().union(*(getattr(case, field) for case in cases))


def test_family_covers_everything():
    """The quick cases deal every card of every deck but the steps; the family, every step too."""
    assert len({case.name for case in FAMILY}) == 240
    for field in ("length", "reverse", "unroll", "style", "explicit_length"):
        assert _seen(QUICK, field) == _seen(FAMILY, field), field
    assert _union(QUICK, "features") == FEATURES.keys()
    assert _union(FAMILY, "flags") - _union(QUICK, "flags") == {"false_tangent"}
    assert _union(FAMILY, "flags") >= REFUSALS.keys()
    assert {case.step for case in FAMILY} == STEPS.keys()
    for case in FAMILY:
        modes = [_family_modes(case, solver) for solver in SOLVERS]
        assert set().union(*modes) == set(modes_for(case)), case.name


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@_by(FAMILY, "case")
def test_whole_family(case, solver):
    """Outputs and derivatives; the message lists every mode that fails, not the first only."""
    if solver == "auto":
        jax.clear_caches()  # a thousand compiled programs would not fit
    _check_outputs(case, solver)
    modes = _family_modes(case, solver)
    failures = []
    for mode in modes:
        try:
            _check(case, solver, mode, modes, reference_modes=modes_for(case))
        except Exception as error:
            failures.append(f"{case.name}: {mode}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
