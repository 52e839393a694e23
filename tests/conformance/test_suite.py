"""``python -m parscan_bp.conformance`` finds what is wrong, where it is wrong, and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.conformance import (
    STEPS,
    Outcome,
    details,
    failed,
    python_loop,
    step_cases,
    summary,
    table,
    target_of,
    try_case,
)
from parscan_bp.conformance.__main__ import main
from parscan_bp.conformance.trial import MODES, USUAL
from tests.family import compare_outputs

MODES_HERE = ("value", "vjp", "jvp")
CASE = dataclasses.replace(
    next(case for case in step_cases(400) if case.step == "elman"),
    features=("counter", "weak_float"),
    name="elman-counter-weak_float",
    length=4,
    reverse=True,
    unroll=1,
    explicit_length=False,
)
WRONG = {
    # name: outcomes of types, value, vjp and jvp
    "right": "....",
    "cuts_gradients": "..DD",
    "forgets_to_reverse": ".DDD",
    "counts_from_one": ".D..",
    "widens": "D...",
}


def _tried(name, case=CASE, **how):
    target = target_of(f"tests.conformance.wrong_scans:{name}", **how)
    case = case if target.reverses else dataclasses.replace(case, reverse=False)
    return try_case(target.scan, jax.lax.scan, case, MODES_HERE)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_where_it_is(name):
    results = _tried(name)
    assert "".join(r.outcome for r in results) == WRONG[name]
    assert failed(results) == (name != "right")
    found = details(results)
    assert ("got" in found and CASE.name in found) == (name != "right")


def test_what_raises_and_what_is_refused_are_told_apart():
    results = _tried("has_no_forward_mode")
    assert "".join(r.outcome for r in results) == "...E" and failed(results)
    assert "can't apply forward-mode" in details(results)
    raised = details(_tried("raises_addresses"))
    assert raised == f"{CASE.name}, types, value, vjp, jvp: ValueError: got <object object at ...>"
    refused = _tried("refuses_integers", options=["strict=True"])
    assert {r.outcome for r in refused} == {Outcome.REFUSED} and not failed(refused)
    assert details(refused).count("\n") == 0 and "which this scan cannot carry" in details(refused)
    assert summary(refused) == "1 steps, 4 results: 4 refused"
    assert table(refused).splitlines()[1].split() == ["elman", "n", "n", "n", "n"]


def test_the_command(capsys):
    how = ["--modes", "value", "--count", "2"]
    assert main(["tests.conformance.wrong_scans:right", *how]) == 0
    said = capsys.readouterr().out
    assert "wrong_scans:right against lax\n" in said
    assert "2 steps, 4 results: 4 alike" in said
    first = next(k for k, case in enumerate(step_cases(9)) if case.reverse and case.length > 1)
    only = ["--modes", "value", "--only", str(first), "--against", "loop"]
    assert main(["tests.conformance.wrong_scans:forgets_to_reverse", *only]) == 1
    said = capsys.readouterr().out
    assert "against loop" in said and step_cases(9)[first].name in said


def test_all_usual_modes_are_known_and_the_steps_are_those_of_a_whole_deck():
    assert set(USUAL) <= set(MODES)
    assert {case.step for case in step_cases(len(STEPS))} == set(STEPS)


def test_mistakes():
    for name, how, words in (
        ("parscan_bp.scan", {}, "package.module:function is wanted"),
        ("parscan_bp:scann", {}, "has no attribute 'scann'"),
        ("no_such_package:scan", {}, "No module named"),
        ("parscan_bp:scan", {"options": ["solver"]}, "with: got 'solver'; NAME=VALUE"),
        ("parscan_bp:scan", {"solver": "Swep"}, "solver: got 'Swep'"),
        ("parscan_bp:scan", {"solver": "Sweep(("}, "a solver of parscan_bp is wanted"),
    ):
        with pytest.raises(ValueError, match=words.replace("(", r"\(")):
            target_of(name, **how)
    with pytest.raises(SystemExit, match=r"package\.module:function is wanted"):
        main(["parscan_bp.scan"])
    with pytest.raises(SystemExit, match="--modes: got"):
        main(["parscan_bp:scan", "--modes", "walue"])


@pytest.mark.parametrize("reverse", [False, True])
def test_the_loop_in_python_is_lax_scan(reverse):
    def step(carry, x):
        key, total, n = carry
        key, sub = jax.random.split(key)
        return (key, total + x * jax.random.uniform(sub), n + 1), (sub, total, n)

    for n in (0, 3):
        args = (jax.random.key(1), 0, np.int32(2)), jnp.arange(1.0, n + 1)
        want = jax.lax.scan(step, *args, reverse=reverse)
        compare_outputs(python_loop(step, *args, reverse=reverse), want)
    step = lambda c, _: (0.5 * c, None)  # noqa: E731
    compare_outputs(python_loop(step, 1.0, length=3), jax.lax.scan(step, 1.0, length=3))


def test_flax_nnx_scan_by_its_adapter():
    pytest.importorskip("flax")
    target = target_of("flax.nnx:scan")
    step = lambda c, x: (c + (1 if x is None else x), c)  # noqa: E731
    for xs, how in ((jnp.arange(3.0), {"reverse": True}), (None, {"length": 3})):
        compare_outputs(target.scan(step, 1.0, xs, **how), jax.lax.scan(step, 1.0, xs, **how))
