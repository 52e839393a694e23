"""`diagnose_within`: in which scan of a function, at which step, by which operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb

XS = jnp.arange(1.0, 7.0)


def _chain(a, fault):
    """Three scans in a row; the middle one, inside of a jit and a condition, has a fault."""
    first = lax.scan(lambda h, x: (jnp.tanh(a * h) + 0.1 * x, None), a, XS)[0]
    middle = jax.jit(lambda h: lax.cond(h > 0, lambda h: lax.scan(fault, h, XS)[0], jnp.abs, h))
    return lax.fori_loop(0, 3, lambda k, h: jnp.sin(h) * k, jax.checkpoint(middle)(first)) ** 2


FAULTS = {
    # the step, what is not finite, at which index of xs, and by what
    "log": (lambda h, x: (h + jnp.log(4 - x), None), "carry", 3, "log"),
    "overflow": (lambda h, x: (h * jnp.exp(1000 * (x > 2)), None), "carry", 2, "exp"),
    "slope": (lambda h, x: (h + jnp.sqrt((x - 3) ** 2 * h), None), "cotangent", 2, "sqrt"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault(name):
    step, quantity, at, primitive = FAULTS[name]
    told = pb.diagnose_within(_chain, 0.7, step)
    kinds = {fault.quantity for fault in told.scans[1].diagnosis.faults}
    assert [scan.index for scan in told.scans] == [0, 1, 2] and quantity in kinds
    assert quantity != "carry" or told.first[0] is told.scans[1]
    found = next(f for f in told.scans[1].diagnosis.faults if f.quantity == quantity)
    assert (found.step, found.operation.primitive) == (at, primitive)
    assert found.operation.file.endswith("test_diagnose_within.py")


def test_a_function_that_is_fine():
    told = pb.diagnose_within(_chain, 0.7, lambda h, x: (jnp.sin(h) + x, None))
    assert told.first is None and str(told).count("all finite") == 3


def test_cotangents_are_those_of_the_function():
    def f(a):
        return jnp.sum(lax.scan(lambda h, x: (a * h + x, h), a, XS)[1] ** 2)

    told = pb.diagnose_within(f, 0.5)
    carries = np.asarray(lax.scan(lambda h, x: (0.5 * h + x, h), 0.5, XS)[1])
    want = [0.0]
    for h in carries[::-1]:  # lambda_{t-1} = g_{t-1} + J_t^T lambda_t
        want.append(2 * h + 0.5 * want[-1])
    np.testing.assert_allclose(told.scans[0].diagnosis.norms, want[::-1], rtol=1e-5)


def test_a_scan_runs_as_often_as_it_is_called():
    twice = jax.jit(lambda h: lax.scan(lambda h, x: (jnp.sin(h) + x, None), h, XS)[0])
    told = pb.diagnose_within(lambda h: twice(twice(h)), XS[0])
    assert [scan.index for scan in told.scans] == [0, 0]


def test_what_is_not_looked_at():
    def f(h):
        once = lambda h: lax.fori_loop(0, 2, lambda k, h: 2 * h, h)  # noqa: E731
        h = lax.while_loop(lambda h: h < 9, once, h)
        return lax.scan(lambda h, x: (h + x, None), h, XS)[0]

    told = pb.diagnose_within(f, 1.0)
    assert len(told.scans) == 1 and told.first is None
    assert any("was not looked at: it is inside of while" in text for text in told.remarks)
    with pytest.raises(ValueError, match="args: got traced values"):
        jax.jit(lambda h: pb.diagnose_within(f, h).first)(1.0)
