"""Outputs that are leaves of the new carry: each has the tangents of its own leaf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parscan_bp as pb
from tests.family import array, jit_once

SOLVERS = (pb.Sweep(), pb.Blelloch())


def step(weights, carry, x):
    a, b = carry
    new = jnp.tanh(b @ weights + x), jnp.sin(a - b * x)
    return new, (new[1], new[0] * new[1], new[0])


def test_tangents_and_cotangents_are_those_of_lax():
    rng = np.random.default_rng(0)
    args = tuple(array(rng.normal(size=s), "float32") for s in ((3, 3), (3,), (3,), (5, 3)))
    along = tuple(array(rng.normal(size=a.shape), "float32") for a in args)

    def of(scan, args, along):
        def run(weights, a, b, xs):
            return scan(functools.partial(step, weights), (a, b), xs)

        (last, ys), tangents = jax.jvp(run, args, along)
        cotangents = jax.vjp(run, *args)[1]((last, ys))
        second = jax.jvp(lambda *args: jax.vjp(run, *args)[1]((last, ys)), args, along)[1]
        return tangents, cotangents, second

    scans = [lax.scan, *(functools.partial(pb.scan, solver=solver) for solver in SOLVERS)]
    want, *found = jit_once(lambda *given: [of(scan, *given) for scan in scans])(args, along)
    for made, solver in zip(found, SOLVERS, strict=True):
        for got, right in zip(jax.tree.leaves(made), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4, err_msg=str(solver))
