"""Complex states of steps that are no holomorphic functions of them: each is two real parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parscan_bp as pb
from tests.family import array

SOLVERS = {"tree": pb.Blelloch(), "products": pb.Sweep()}


def step(weights, carry, x):
    """Parts mix, conjugate and turn; a real state beside them is driven by what is imaginary."""
    z, r = carry
    new = jnp.tanh(0.7 * jnp.conj(z) @ weights + r * x) + 0.2j * z.real
    return (new, jnp.sin(r + z.imag * x.real)), jnp.abs(new) ** 2 + r


def loss(scan, weights, init, xs):
    (z, r), ys = scan(functools.partial(step, weights), init, xs)
    return jnp.sum(jnp.cos(z.real + 2 * z.imag) + r) + jnp.sum(jnp.sin(ys))


def test_cotangents_and_tangents_are_those_of_lax():
    rng = np.random.default_rng(0)
    draw = lambda *shape: array(rng.normal(size=shape) + 1j * rng.normal(size=shape), "complex64")  # noqa: E731
    args = draw(3, 3), (draw(3), array(rng.normal(size=3), "float32")), draw(7, 3)
    along = jax.tree.map(lambda a: array(rng.normal(size=a.shape), a.dtype), args)
    scans = {name: functools.partial(pb.scan, solver=solver) for name, solver in SOLVERS.items()}

    @jax.jit
    def everything(args, along):
        def of(scan):
            f = functools.partial(loss, scan)
            return jax.grad(f, (0, 1, 2))(*args), jax.jvp(f, args, along)[1]

        return {name: of(scan) for name, scan in ({"lax": lax.scan} | scans).items()}

    found = jax.tree.map(np.asarray, everything(args, along))
    for name in SOLVERS:
        for got, want in zip(*map(jax.tree.leaves, (found[name], found["lax"])), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=name)
