"""A `custom_jvp` whose rule is not the derivative of its function, as a spike's surrogate slope.

Second derivatives are those of the rule, not of the function. The reference is the loop in Python:
second derivatives by `lax.scan` are others up to jax 0.10.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from tests.quickly import jit_quickly

SOLVERS = {"sweep": pb.Sweep(), "keeping": pb.Sweep(recompute=False)}
SOLVERS["blelloch"] = pb.Blelloch()
XS = np.linspace(-1.0, 1.5, 8).reshape(4, 2)


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    (v,), (t,) = primals, tangents
    return spike(v), t / (1 + jnp.abs(v)) ** 2


def _loss(scan, w):
    """The slope of a step depends on the spike before."""
    step = lambda c, x: ((0.9 * c[0] * (1 - c[1]) + w * x, spike(c[0] - 0.1)), c[0])  # noqa: E731
    zero = jnp.zeros(2, w.dtype)
    return jnp.sum(scan(step, (zero, zero), jnp.asarray(XS, w.dtype))[1] ** 2)


def _grad_of_grad(loss, w, t):
    return jax.grad(lambda w: jnp.vdot(jax.grad(loss)(w), t))(w)


MODES = {
    "grad": lambda loss, w, t: jax.grad(loss)(w),
    "hvp": lambda loss, w, t: jax.jvp(jax.grad(loss), (w,), (t,))[1],
    "reverse over forward": lambda loss, w, t: jax.grad(lambda w: jax.jvp(loss, (w,), (t,))[1])(w),
    "grad of grad": _grad_of_grad,
}


@pytest.mark.sampled
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_surrogate_slopes(mode, solver):
    w, t = jnp.array([0.7, -1.2]), jnp.array([0.3, 1.0])
    got, want = (
        jit_quickly(functools.partial(MODES[mode], functools.partial(_loss, scan)))(w, t)
        for scan in (functools.partial(pb.scan, solver=SOLVERS[solver]), python_loop)
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
