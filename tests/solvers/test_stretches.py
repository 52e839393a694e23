"""How many steps a sweep takes at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.measured import measured
from parscan_bp.solvers.stretches import is_scattered, steps_per_chunk
from tests.family import assert_derivatives_close

FEW = measured("cpu")["scattered"]


@pytest.mark.parametrize(
    ("steps", "chunk"), [(1200, 16), (600, 15), (601, 16), (17, 17), (5, 5), (1, 1)]
)
def test_scattered_steps_are_taken_a_few_at_a_time(steps, chunk):
    """A divisor where there is one nearby, and all where hardly more are left."""
    assert FEW["steps"] == 16
    assert steps_per_chunk(steps, 192, 48, scattered=True) == chunk
    assert steps_per_chunk(steps, 192, 48) >= chunk


def test_what_is_summed_wants_longer_stretches():
    assert steps_per_chunk(1000, 100, 100_000, scattered=True) == 500


@pytest.mark.parametrize(
    ("leaves", "numbers", "scattered"), [(12, 8, True), (11, 8, False), (12, 9, False)]
)
def test_steps_are_scattered_of_many_small_leaves(leaves, numbers, scattered):
    assert (FEW["leaves"], FEW["numbers"]) == (12, 8)
    state = [jnp.zeros(())] * leaves
    linearised = [np.zeros((1,))] * 40 + [np.zeros((1, numbers))]
    assert is_scattered(state, linearised) == scattered


@pytest.mark.parametrize("length", [16 * 3, 16 * 2 + 5])
def test_coupled_scalars(length):
    count = FEW["leaves"]
    rates = tuple(np.float32(0.1 + k / 60) for k in range(count))
    first = tuple(np.float32(0.1 * k) for k in range(count))

    def loss(scan, rates):
        def step(c, x):
            near = (c[(k + 1) % count] for k in range(count))
            new = tuple(
                a + 0.1 * (jnp.sin(b) - r * a) + x for a, b, r in zip(c, near, rates, strict=True)
            )
            return new, c[0]

        xs = np.linspace(-0.1, 0.1, length, dtype=np.float32)
        last, ys = scan(step, first, xs)
        return jnp.sum(ys**2) + sum(last)

    def gradient(scan):
        return jax.value_and_grad(functools.partial(loss, scan))

    ours, few = (functools.partial(pb.scan, solver=pb.Sweep(chunk)) for chunk in (None, 16))
    got, want = jax.jit(lambda rates: [gradient(scan)(rates) for scan in (ours, lax.scan)])(rates)
    assert_derivatives_close(got, want, 1e-4)
    programs = [jax.jit(gradient(scan)).lower(rates).as_text() for scan in (ours, few)]
    assert programs[0] == programs[1]
