"""``jacobian=`` functions that return operators whose parts have different batch axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense, Diagonal, LowRankUpdate, Product, Sum
from tests.family import jit_once

H = 2
W = jnp.array([[0.5, 1.0], [-1.0, 0.25]])
LEFT, RIGHT = jnp.array([[0.3], [0.7]]), jnp.array([[1.0], [-0.4]])

# Each a step whose input has a number for the whole batch, dt, and its transposed Jacobian.
STEPS = {
    "product": (
        lambda c, dt, x: jnp.tanh(c @ (W * dt) + x),
        lambda c, t, h: Product((Dense(W * t[0]), Diagonal(1 - h * h))),
    ),
    "sum": (
        lambda c, dt, x: jnp.sin(c) + c @ (W * dt) + x,
        lambda c, t, h: Sum((Dense(W * t[0]), Diagonal(jnp.cos(c)))),
    ),
    "low rank": (
        lambda c, dt, x: jnp.sin(c) + dt * (c @ LEFT) @ RIGHT.T + x,
        lambda c, t, h: LowRankUpdate(jnp.cos(c)[..., None, :], (LEFT * t[0])[None], RIGHT[None]),
    ),
}
SOLVERS = (pb.Sweep(), pb.Sweep(chunk=3), pb.Blelloch(), pb.Chunked(3), pb.Jacobi())


def ramp(*shape):
    return jnp.asarray(np.arange(np.prod(shape)).reshape(shape) % 7 * 0.1 - 0.2, float)


def problem(steps, batch):
    return ramp(*batch, H), (0.5 * jnp.arange(1.0, steps + 1), ramp(steps, *batch, H))


CASES = [(name, batch) for name in STEPS for batch in ((3,), (3, 3), (2,), (1,))]


@pytest.mark.parametrize(
    ("name", "batch"),
    [pytest.param(*c, marks=() if c[1] == (3,) else pytest.mark.slow) for c in CASES],
)
def test_parts_that_the_batch_shares(name, batch):
    """Row b's part was taken for step t, where there are as many steps as rows."""
    step, own = STEPS[name]
    h0, xs = problem(3, batch)
    body = lambda c, t: (lambda h: (h, h))(step(c, *t))  # noqa: E731

    def run(scans, h0, xs):
        def loss(scan, h0, xs):
            ys = scan(body, h0, xs)[1]
            return jnp.sum(ys * jnp.cos(jnp.arange(ys.size * 1.0)).reshape(ys.shape))

        return [jax.grad(functools.partial(loss, scan), (0, 1))(h0, xs) for scan in scans]

    solvers = SOLVERS if batch == (3,) else SOLVERS[1:3]
    ours = [functools.partial(pb.scan, solver=s, jacobian=own) for s in solvers]
    want, *found = jit_once(functools.partial(run, [jax.lax.scan, *ours]))(h0, xs)
    for solver, got in zip(solvers, found, strict=True):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=str(solver))


def test_the_check_takes_parts_that_the_batch_shares():
    step, own = STEPS["product"]
    h0, xs = problem(2, (2,))
    body = lambda c, t: (step(c, *t), None)  # noqa: E731
    pb.scan(body, h0, xs, solver=pb.Sweep(), jacobian=own, check_jacobian=True)
    wrong = lambda c, t, h: Product((Dense(W), Diagonal(1 - h * h)))  # noqa: E731
    with pytest.raises(ValueError, match=r"jacobian: Product.* automatic differentiation"):
        pb.scan(body, h0, xs, solver=pb.Sweep(), jacobian=wrong, check_jacobian=True)


def test_batch_axes_that_the_carry_has_not_are_refused():
    h0, xs = problem(2, (3,))
    body = lambda c, t: (jnp.sin(c) * t[0], None)  # noqa: E731
    with pytest.raises(ValueError, match=r"the operator has batch axes \(4,\); carry leaves of "):
        pb.scan(
            body, h0, xs, solver=pb.Sweep(), jacobian=lambda c, t, h: Diagonal(jnp.ones((4, H)))
        )


def test_an_operator_that_the_batch_shares_alone_is_refused():
    matrix = jnp.eye(3) / 2
    given = {"jacobian": lambda c, x, new: Dense(matrix), "solver": pb.Sweep()}
    with pytest.raises(ValueError, match=r"3x3 with batch axes \(\); .* is 6x6"):
        jax.grad(
            lambda c: pb.scan(lambda c, _: (c @ matrix, None), c, None, length=4, **given)[0].sum()
        )(jnp.ones((2, 3)))
