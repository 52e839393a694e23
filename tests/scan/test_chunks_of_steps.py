"""Chunks of a sweep in both directions: what enters each is what left the one before it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parscan_bp as pb
from tests.family import array, jit_once

LENGTH, CHUNKS = 7, (1, 2, 3, 7)


def step(weights, h, x):
    new = jnp.tanh(h @ weights + x)
    return new, h * new


def test_chunks_of_any_length_have_the_gradient_of_lax():
    rng = np.random.default_rng(0)
    weights, init, xs = (array(rng.normal(size=s), "float32") for s in ((3, 3), (3,), (LENGTH, 3)))

    def loss(scan, weights, init, xs):
        last, ys = scan(functools.partial(step, weights), init, xs)
        return jnp.sum(jnp.sin(last)) + jnp.sum(jnp.cos(ys))

    @jit_once
    def gradients(*args):
        scans = {0: lax.scan}
        scans |= {k: functools.partial(pb.scan, solver=pb.Sweep(chunk=k)) for k in CHUNKS}
        made = {}
        for k, scan in scans.items():
            for reverse in (False, True):
                f = functools.partial(loss, functools.partial(scan, reverse=reverse))
                made[k, reverse] = jax.grad(f, (0, 1, 2))(*args)
        return made

    found = gradients(weights, init, xs)
    for k in CHUNKS:
        for reverse in (False, True):
            for got, want in zip(found[k, reverse], found[0, reverse], strict=True):
                np.testing.assert_allclose(
                    got, want, rtol=1e-5, atol=1e-5, err_msg=f"{k} steps, reverse={reverse}"
                )
