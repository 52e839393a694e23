"""Five faults of everyday, planted: `diagnose` names step, leaf, operation and line."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from tests.quickly import jit_quickly


def zero_over_zero(carry, x):
    mean = carry["sum"] / carry["count"]  # here
    count = carry["count"] + jnp.where(x > 0, 1.0, -carry["count"])
    total = carry["sum"] + jnp.where(x > 0, x, -carry["sum"])
    return {"sum": total, "count": count, "mean": mean}, None


def root_of_zero(h, x):
    distance = jnp.sqrt(jnp.square(h - x))  # here
    return 0.5 * h + 0.5 * distance, h


def overflow_of_a_product(carry, x):
    h = carry["h"] * carry["h"] * x  # here
    return {"h": h, "steps": carry["steps"] + 1}, carry["steps"]


def difference_of_infinities(carry, x):
    up, down = carry["up"] * x, 2 * carry["down"]
    gap = carry["up"] - carry["down"]  # here
    return {"up": up, "down": down, "gap": gap}, None


def branch_not_taken(h, x):
    safe = jnp.where(x > 0, h / x, 0.0)  # here
    return 0.5 * h + safe, None


MAXEXP = jnp.finfo(jnp.zeros(()).dtype).maxexp
SUMS = {"sum": jnp.array([1.0, 3.0]), "count": jnp.ones(2), "mean": jnp.zeros(2)}
UP_AND_DOWN = {"up": jnp.inf, "down": 2.0 ** (MAXEXP - 3), "gap": 0.0}
SQUARED = {"h": jnp.full(3, 2.0), "steps": 0}
DOUBLINGS = int(np.log2(MAXEXP))  # 2 to the 2**k is infinite

CASES = {
    # name: step, init, xs, and the fault
    "0/0 in a leaf": (
        *(zero_over_zero, SUMS, jnp.array([1.0, 2.0, -1.0, 1.0, 1.0])),
        *("carry", 3, "carry['mean']", "NaN", "div"),
    ),
    "sqrt at 0": (
        *(root_of_zero, jnp.array([4.0, 8.0]), jnp.array([1.0, 0.5, 3.25, 1.0])),
        *("cotangent", 2, "carry", "NaN", "sqrt"),
    ),
    "overflow of a product": (
        *(overflow_of_a_product, SQUARED, jnp.ones(15)),
        *("carry", DOUBLINGS - 1, "carry['h']", "infinite", "mul"),
    ),
    "inf - inf across leaves": (
        *(difference_of_infinities, UP_AND_DOWN, jnp.ones(6)),
        *("carry", 3, "carry['gap']", "NaN", "sub"),
    ),
    "an infinite branch that where does not take": (
        *(branch_not_taken, jnp.ones(2), jnp.array([1.0, 2.0, 0.0, 3.0])),
        *("cotangent", 2, "carry", "NaN", "div"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_fault_is_found(name):
    step, init, xs, quantity, at, leaf, what, primitive = CASES[name]
    diagnosis = pb.diagnose(step, init, xs)
    fault = next(f for f in diagnosis.faults if (f.quantity, f.what) == (quantity, what))
    assert (fault.step, fault.leaf) == (at, leaf)
    assert fault.operation.primitive == primitive
    assert fault.operation.function == step.__name__
    assert (fault.operation.file, fault.operation.line) == (__file__, _line(step))
    assert fault.operation.hidden == (step is branch_not_taken)
    assert f"at step {at}" in str(diagnosis)


def _line(step):
    lines, first = inspect.getsourcelines(step)
    return first + next(k for k, line in enumerate(lines) if line.rstrip().endswith("# here"))


def test_the_faults_are_where_they_are_said_to_be():
    """By the gradients of shorter and shorter scans, and by their values."""
    of_slopes = ("sqrt at 0", "an infinite branch that where does not take")
    of_values = ("0/0 in a leaf", "overflow of a product")

    def slopes_of(name, init, xs):
        step, at = CASES[name][0], CASES[name][4]
        last = lambda h, xs: jnp.sum(jax.lax.scan(step, h, xs)[0])  # noqa: E731
        carry = jax.lax.scan(step, init, xs[:at])[0]
        after = step(carry, xs[at])[0]
        slopes = jax.grad(last)(carry, xs[at:]), jax.grad(last)(after, xs[at + 1 :])
        return last(init, xs), *slopes

    def values_of(name, init, xs):
        step, at, leaf = CASES[name][0], *CASES[name][4:6]
        ends = (jax.lax.scan(step, init, xs[:n])[0] for n in (at, at + 1))
        return [end[leaf.split("'")[1]] for end in ends]

    @jit_quickly
    def run(given):
        by = dict.fromkeys(of_slopes, slopes_of) | dict.fromkeys(of_values, values_of)
        return {name: f(name, *given[name]) for name, f in by.items()}

    found = run({name: case[1:3] for name, case in CASES.items()})
    for name in of_slopes:
        value, before, after = found[name]
        assert np.isfinite(value) and np.isnan(before).any() and np.isfinite(after).all()
    for name in of_values:
        before, after = found[name]
        assert np.isfinite(before).all() and not np.isfinite(after).all()
