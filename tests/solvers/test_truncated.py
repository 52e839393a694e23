"""Truncated back-propagation against what is written by hand, and the bound on what is cut off."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.operators import Dense
from tests.family import jit_once

H = 3
DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
TOL = 1e-11 if DTYPE == jnp.float64 else 2e-5
W = jnp.asarray(np.random.default_rng(0).normal(size=(H, H)) / 2, DTYPE)


def step(w, c, x):
    new = jnp.tanh(c @ w + x)
    return new, (new, c * x)  # one output is the carry itself, one reads the old one


def data(n):
    rng = np.random.default_rng(n)
    xs, targets = (jnp.asarray(rng.normal(size=(n, H)), DTYPE) for _ in range(2))
    return jnp.asarray(rng.normal(size=H), DTYPE), xs, targets


def loss_of(outputs, target):
    new, other = outputs
    return jnp.sum((new - target) ** 2, -1) + jnp.sum(jnp.sin(other), -1)


def total(scan, w, c, xs, targets):
    last, ys = scan(functools.partial(step, w), c, xs)
    return jnp.sum(loss_of(ys, targets)) + jnp.sum(last**3)


def cut_by_hand(k, f, c, xs, reverse=False):
    """`lax.scan` with a stop_gradient at every k-th step, counted from the first."""
    n = xs.shape[0]

    def body(carry, x):
        t, c = carry
        c = jnp.where((t % k == 0) & (t > 0), lax.stop_gradient(c), c)
        new, y = f(c, x)
        return (t + 1, new), y

    (_, last), ys = lax.scan(body, (0, c), xs, length=n, reverse=reverse)
    return last, ys


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 3), (2, 1), (7, 3), (8, 4), (9, 4), (9, 20)])
def test_windows_are_those_of_stopped_gradients(n, k):
    c, xs, targets = data(n)

    def everything(scan):
        loss = functools.partial(total, scan)
        push = lambda w, c: jax.jvp(lambda w, c: loss(w, c, xs, targets), (w, c), (jnp.cos(w), c))  # noqa: E731
        return jax.grad(loss, (0, 1, 2))(W, c, xs, targets), push(W, c)

    for reverse in (False, True):
        by_hand = functools.partial(cut_by_hand, k, reverse=reverse)
        ours = functools.partial(pb.scan, solver=pb.Truncated(k), reverse=reverse)
        got, want = (jit_once(lambda s=s: everything(s))() for s in (ours, by_hand))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=TOL, atol=TOL)


def slide_by_hand(k, w, c, xs, targets):
    """The gradient by the parameters of each step alone, through k steps from there."""
    carries, n, out = [c], len(xs), jnp.zeros_like(w)
    for x in xs:
        carries.append(step(w, carries[-1], x)[0])
    for t in range(n):

        def ahead(own, t=t):
            c, value = carries[t], 0.0
            for j in range(t, min(t + k, n)):
                c, y = step(own if j == t else w, c, xs[j])
                value += loss_of(y, targets[j])
            return value + (jnp.sum(c**3) if t + k >= n else 0.0)

        out += jax.grad(ahead)(w)
    return out


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_sliding_windows_see_so_many_steps(k):
    c, xs, targets = data(7)
    loss = functools.partial(
        total, functools.partial(pb.scan, solver=pb.Truncated(k, sliding=True))
    )
    got = jit_once(jax.grad(loss))(W, c, xs, targets)
    want = jit_once(functools.partial(slide_by_hand, k))(W, c, xs, targets)
    np.testing.assert_allclose(got, want, rtol=TOL, atol=TOL)


@pytest.mark.sampled
@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("q", [0.3, 0.8, 1.2])
def test_what_was_cut_off_is_bounded(sliding, q):
    """Against the exact solution; a long window on a contracting system has a tight bound."""
    n = 64
    rng = np.random.default_rng(3)
    a = np.linalg.qr(rng.normal(size=(n, H, H)))[0] * q
    g = rng.normal(size=(n + 1, H))
    want = [g[-1]]
    for t in reversed(range(n)):
        want.append(g[t] + a[t] @ want[-1])
    want = np.stack(want[::-1])

    @jit_once
    def solve(a, g):
        system = pb.Uniform(Dense(a), g)
        how = {"sliding": sliding}
        return {k: pb.solve(system, pb.Truncated(k, **how), report=True) for k in (1, 4, 16, 100)}

    solved = solve(jnp.asarray(a, DTYPE), jnp.asarray(g, DTYPE))
    for k, (solution, report) in solved.items():
        error = np.abs(solution - want).max() / np.abs(solution).max()
        assert error <= report.cut_off * (1 + 1e-4) + 100 * TOL
        if k == 100:
            assert report.cut_off <= 100 * TOL and report.status == pb.Status.OK
        else:
            assert (report.status == pb.Status.OK) == (report.residual <= report.bound)
        if q == 0.3 and k == 4:
            assert report.cut_off < 10 * error


def test_the_report_of_a_scan():
    c, xs, _ = data(9)
    diagonal = lambda c, x: (0.5 * jnp.tanh(c) + x, c)  # noqa: E731
    *_, report = pb.scan(diagonal, c, xs, solver=pb.Truncated(3), jacobian="diagonal", report=True)
    assert 0 < report.cut_off < 1
    # Of products alone no absolute values are known.
    *_, report = pb.scan(functools.partial(step, W), c, xs, solver=pb.Truncated(3), report=True)
    assert np.isnan(report.cut_off) and report.status == pb.Status.INACCURATE
    *_, report = pb.scan(functools.partial(step, W), c, xs, solver=pb.Truncated(9), report=True)
    assert report.status == pb.Status.OK


def test_pytrees_batches_and_vmap():
    def pair(c, x):
        h, k = c
        return (jnp.tanh(0.5 * h + k + x), 0.5 * k + 0.1 * jnp.sum(h)), h

    c0 = (jnp.ones(H, DTYPE), jnp.asarray(0.3, DTYPE))
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8, H)), DTYPE)

    def gradient(scan):
        loss = lambda c0, xs: jnp.sum(scan(pair, c0, xs)[1] ** 2)  # noqa: E731
        return jit_once(jax.vmap(jax.grad(loss, (0, 1)), (None, 0)))(c0, xs)

    def by_hand(f, c, xs):
        def body(carry, x):
            t, c = carry
            stop = lambda a: jnp.where((t % 3 == 0) & (t > 0), lax.stop_gradient(a), a)  # noqa: E731
            new, y = f(jax.tree.map(stop, c), x)
            return (t + 1, new), y

        (_, last), ys = lax.scan(body, (0, c), xs)
        return last, ys

    got = gradient(functools.partial(pb.scan, solver=pb.Truncated(3)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(gradient(by_hand)), strict=True):
        np.testing.assert_allclose(a, b, rtol=TOL, atol=TOL)


def test_layers_are_not_cut():
    with pytest.raises(NotImplementedError, match="Truncated takes uniform systems only"):
        pb.solve(pb.Ragged([Dense(jnp.ones((2, 3)))], [None, jnp.ones(3)]), pb.Truncated(2))


@pytest.mark.reads_compiled
def test_windows_take_the_memory_of_one():
    """Of the linearised steps; the carries are stored for all."""
    n, features = 256, 64
    w = jnp.eye(features, dtype=jnp.float32)
    xs = jnp.ones((n, features), jnp.float32)

    def temp(solver):
        step = lambda w, c, x: (jnp.tanh(c @ w + x), None)  # noqa: E731
        run = lambda w: pb.scan(functools.partial(step, w), xs[0], xs, solver=solver)  # noqa: E731
        f = lambda w: jnp.sum(run(w)[0])  # noqa: E731
        return jax.jit(jax.grad(f)).lower(w).compile().memory_analysis().temp_size_in_bytes

    assert temp(pb.Truncated(8)) < temp(pb.Sweep(n))
