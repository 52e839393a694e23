"""Components of very different sizes: what a sequential sweep keeps, trees with exponents keep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import BlockDiagonal, Dense, Diagonal
from tests.family import jit_once

F32 = np.finfo(np.float32)
TREES = {
    "blelloch": pb.Blelloch(scaled=True),
    "truncated": pb.Blelloch(scaled=True, up_levels=3),
    "chunked": pb.Chunked(chunks=4, scaled=True),
    "associative": pb.Associative(scaled=True),
}
H = 4


def systems(n):
    """Matrices (n, systems, H, H) and last cotangents (systems, H): powers far outside float32."""
    rng = np.random.default_rng(0)
    eye, shift = np.eye(H), np.diag(np.ones(H - 1), 1)
    grows, decays = 1.05 * eye + shift, 0.9 * eye + shift
    decays[0, 0] = 2
    triangular = np.triu(0.3 * rng.normal(size=(n, H, H)), 1) + np.diag([1.0, 1.0, 1.0, 1.5])
    up, down = np.diag([2, 0.5, 1, 1]), np.diag([0.5, 2, 1, 1])
    permuted = eye[[1, 2, 3, 0]] @ np.diag([4, 0.25, 1, 1])
    rotation = np.linalg.qr(rng.normal(size=(H, H)))[0]
    cases = [
        (np.diag([2, 1, 0.5, 1.1]), [0, 1, 0, 0]),
        (np.diag([2, 1, 0.5, 1.0]), [0, 1, 0, 1]),
        (np.diag([2, 1, 0.5, 1.0]), [1e-30, 1, 1, 1]),
        (triangular, [1, 0, 0, 0]),
        (np.stack([up] * (n // 2) + [down] * (n - n // 2)), [1, 1, 1, 1]),
        (np.stack([down] * (n // 2) + [up] * (n - n // 2)), [1, 1, 1, 1]),
        (permuted, [1, 0, 0, 0]),
        (grows, [2e-38, 0, 0, 0]),
        (decays, [0, 0, 0, 1]),
        (rotation @ np.diag([2, 1, 0.5, 0.9]) @ rotation.T, rotation[:, 1]),
    ]
    matrices = np.stack([np.broadcast_to(a, (n, H, H)) for a, _ in cases], axis=1)
    return matrices.astype(np.float32), np.asarray([v for _, v in cases], np.float32)


def reference(matrices, g):
    """lambda by substitution in long double, its bound |A| ... |A| |g|, what underflow adds."""
    a, g = matrices.astype(np.longdouble), g.astype(np.longdouble)
    rows = [(g[-1], abs(g[-1]), np.where(g[-1] != 0, F32.tiny, 0).astype(np.longdouble))]
    for t in reversed(range(len(a))):
        lam, size, lost = rows[-1]
        push = lambda m, v: np.einsum("sij,sj->si", m, v)  # noqa: E731
        size = abs(g[t]) + push(abs(a[t]), size)
        lost = push(abs(a[t]), lost) + np.where(size > 0, 2 * H * F32.tiny, 0)
        rows.append((g[t] + push(a[t], lam), size, lost))
    return tuple(np.stack(part) for part in zip(*rows[::-1], strict=True))


def solve(operators, g, solver):
    """As one program, in long double."""
    run = jit_once(lambda a, g: pb.solve(pb.Uniform(a, g), solver))
    return np.asarray(run(operators, jnp.asarray(g)), np.longdouble)


@pytest.mark.parametrize("n", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TREES)
def test_every_component_that_a_sweep_keeps_is_kept(name, n):
    matrices, last = systems(n)
    g = np.zeros((n + 1, *last.shape), np.float32)
    g[-1] = last
    g[n // 2, 1] = [0, 1, 0, 1]
    want, size, lost = reference(matrices, g)
    operators = Dense(jnp.asarray(matrices))
    got, swept = (solve(operators, g, solver) for solver in (TREES[name], pb.Sweep()))
    # Where a component has become infinite, a zero of the matrix makes NaN of it in the sweep, too.
    inside = (size < F32.max / 8) & np.isfinite(swept)
    error = np.where(inside, abs(got - want), 0)
    gamma = n * (H + 4) * F32.eps
    assert (error[inside] <= (gamma * size + lost)[inside]).all()
    # Most of what is compared is far above what underflow explains.
    assert (inside & (lost < 1e-3 * gamma * size)).mean() > 0.1
    # Of diag(2, 1, ...), the component that stays is exact.
    assert (got[:, 0, 1] == 1).all() and (got[:, 0, 0] == 0).all()


def test_diagonals_and_blocks_keep_what_dense_maps_keep():
    n = 1200  # 300 steps a chunk: a product of 2**300 beside one of 1
    diagonal = jnp.broadcast_to(jnp.asarray([2.0, 1.0, 0.5, 1.0], jnp.float32), (n, H))
    dense = jnp.eye(H, dtype=jnp.float32) * diagonal[..., None]
    v = jnp.asarray([0.0, 1.0, 2.0**100, 1.0], jnp.float32)
    g = jnp.zeros((n + 1, H), jnp.float32).at[-1].set(v)
    blocks = BlockDiagonal(jnp.stack([dense[..., :2, :2], dense[..., 2:, 2:]], axis=-3))
    want = solve(Diagonal(diagonal), g, pb.Sweep())
    for operators in (Diagonal(diagonal), blocks):
        np.testing.assert_array_equal(solve(operators, g, TREES["chunked"]), want)


def test_scaled_flushes():
    """A unit that grows beside one that remembers: the derivative 1 of the latter was 0."""
    a, solver = jnp.diag(jnp.asarray([2.0, 1.0], jnp.float32)), TREES["chunked"]
    loss = lambda h: pb.scan(lambda h, _: (a @ h, None), h, None, 600, solver=solver)[0][1]  # noqa: E731
    assert jax.jit(jax.grad(loss))(jnp.zeros(2, a.dtype)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("mode", ["jvp", "grad", "grad-grad", "vmap"])
def test_derivatives_where_products_leave_the_range(mode):
    """Also by entries that are zero."""
    n = 200
    a = jnp.broadcast_to(jnp.diag(jnp.asarray([2.0, 1.0], jnp.float32)), (n, 2, 2))
    g = jnp.zeros((n + 1, 2), jnp.float32).at[-1, 1].set(1.0)
    # What grows is not met in these directions, or a derivative of the sweep would overflow, too.
    da, dg = jnp.zeros_like(a).at[:, 1, 1].set(1e-3), g

    def loss(solver, a, g):
        return jnp.sum(pb.solve(pb.Uniform(Dense(a), g), solver)[..., 1] ** 2)

    def derivative(solver):
        f = functools.partial(loss, solver)
        push = lambda a, g: jax.jvp(f, (a, g), (da, dg))[1]  # noqa: E731
        if mode == "jvp":
            return push(a, g)
        if mode == "grad":
            return jax.grad(f, (0, 1))(a, g)
        if mode == "grad-grad":
            return jax.grad(push, (0, 1))(a, g)
        batch = jnp.stack([g, 2 * g], axis=1)
        return jax.vmap(jax.grad(f, (0, 1)), (None, 1))(a, batch)

    got, want = (jax.jit(derivative, static_argnums=0)(s) for s in (TREES["chunked"], pb.Sweep()))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_an_infinity_of_an_elementwise_step_stays_in_its_entry():
    """A tree may turn it into NaN; no other entry sees it."""
    xs = jnp.asarray([[2.0, 2.0], [0.0, 4.0], [2.0, 2.0]])
    steps = {
        "elementwise": (lambda c, x: (c / x, None), jnp.ones(2)),
        "leaves": (lambda c, x: ((c[0] / x[0], c[1] / x[1]), None), (1.0, 1.0)),
    }
    trees = [pb.Chunked(chunks=2), pb.Blelloch(), pb.Associative(), TREES["blelloch"]]
    for step, start in steps.values():

        def total(c, solver):
            return sum(map(jnp.sum, jax.tree.leaves(pb.scan(step, c, xs, solver=solver)[0])))

        gradients = jax.jit(lambda c: [jax.grad(total)(c, solver) for solver in trees])(start)
        for got in map(jax.tree.leaves, gradients):
            got = jnp.stack(got).ravel()
            assert not jnp.isfinite(got[0]) and got[1] == 0.0625
