"""Derivatives through methods: lengths, mapped, closures; `tests/modes` has every mode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import together
from tests.forward.methods import METHODS, by_method
from tests.quickly import jit_quickly

H, ROWS = 3, 2
ONE = "chunks to the end"


def gated(params, carry, x):
    """Two leaves, outputs that are the carry and such as are not."""
    h, c = carry
    i, g = jnp.split(h @ params["w"] + x @ params["u"] + params["b"], 2, -1)
    c = 0.6 * jax.nn.sigmoid(i) * c + jnp.tanh(g)
    h = jnp.tanh(c)
    return (h, c), (h, jnp.sin(c) * x[..., :1], None)


def arguments(length, rows=ROWS, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 6))
    draw = lambda *shape: jax.random.normal(next(keys), shape)  # noqa: E731
    lead = (rows,) if rows else ()
    params = {"w": 0.5 * draw(H, 2 * H), "u": draw(H, 2 * H), "b": draw(2 * H)}
    return params, (draw(*lead, H), draw(*lead, H)), draw(length, *lead, H)


def loss(scan, params, init, xs):
    """A number of which every result is read in another way."""
    (h, c), (hs, ys, _) = scan(functools.partial(gated, params), init, xs)
    shape = jnp.cos(jnp.arange(ys.size, dtype=ys.dtype)).reshape(ys.shape)
    return jnp.sum(jnp.sin(h) * c) + jnp.sum(hs**2) + jnp.sum(shape * ys)


MODES = {"value": lambda f: f, "grad": lambda f: jax.grad(f, (0, 1, 2))}


def assert_close(got, want, tolerance):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape and a.dtype == b.dtype
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (1 + np.abs(b).max(initial=0)))


def differ(name, derive, args, tolerance, **options):
    """What a method gives, beside `lax.scan`, as one program."""
    reverse = options.get("reverse", False)
    scans = (
        functools.partial(pb.scan, forward=METHODS[name].method, **options),
        functools.partial(lax.scan, reverse=reverse),
    )
    run = lambda args: [derive(functools.partial(loss, scan))(*args) for scan in scans]  # noqa: E731
    assert_close(*jit_quickly(run)(args), tolerance)


@by_method(ONE)
@pytest.mark.parametrize("solver", [pb.Blelloch(), pb.Chunked(chunks=2)], ids=str)
def test_other_solvers_and_reverse(name, solver):
    differ(name, MODES["grad"], arguments(17), 1e-4, solver=solver, reverse=True)
    differ(name, MODES["value"], arguments(17, rows=0), 1e-5, solver=solver, unroll=3)


@by_method(ONE)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9])
def test_lengths(name, length, request):
    def case(name, length):
        scans = functools.partial(pb.scan, forward=METHODS[name].method), lax.scan
        slopes = [MODES["grad"](functools.partial(loss, scan)) for scan in scans]
        return lambda *args: [slope(*args) for slope in slopes], arguments(length)

    assert_close(*together(request, case), 1e-4)


@by_method(ONE)
def test_mapped(name):
    with jax.enable_x64(True):
        args = jax.tree.map(lambda *a: jnp.stack(a), *(arguments(21, seed=k) for k in range(3)))
        differ(
            name,
            lambda f: lambda *a: (jax.vmap(MODES["grad"](f))(*a), jax.vmap(f)(*a)),
            args,
            1e-10,
        )


def test_a_part_of_the_arguments_and_a_closure():
    params, init, xs = arguments(20)

    def part(scan, w, x):
        def step(carry, u):
            return gated({**params, "w": w}, carry, u * x)

        return jnp.sum(scan(step, init, xs)[1][1])

    ours = functools.partial(pb.scan, forward=pb.Chunks(3))
    for which in (0, 1):
        got, want = (
            jax.grad(functools.partial(part, scan), which)(params["w"], 0.7)
            for scan in (ours, lax.scan)
        )
        assert_close(got, want, 1e-4)


def test_without_inputs():
    step = lambda h, _: (jnp.tanh(0.7 * h + 0.3), h * h)  # noqa: E731
    run = lambda scan, **how: lambda h: jnp.sum(scan(step, h, length=40, **how)[1])  # noqa: E731
    h = jnp.linspace(-1, 1, 5)
    got, want = run(pb.scan, forward=pb.Chunks(4)), run(lax.scan)
    assert_close((got(h), jax.grad(got)(h)), (want(h), jax.grad(want)(h)), 1e-5)


def test_a_given_jacobian_and_a_leaf_that_no_step_changes():
    def step(carry, x):
        h, a = carry
        h = a * jnp.tanh(h) + x
        return (h, a), h

    init, xs = (jnp.ones(3), jnp.asarray([0.5, -0.3, 0.8])), jnp.ones((30, 3))
    run = lambda scan: jax.value_and_grad(lambda init: jnp.sum(scan(step, init, xs)[1] ** 2))(init)  # noqa: E731
    ours = functools.partial(pb.scan, forward=pb.Chunks(3))
    assert_close(run(ours), run(lax.scan), 1e-5)
    slope = lambda h, x, new: pb.operators.Diagonal(0.5 * (1 - jnp.tanh(h) ** 2))  # noqa: E731
    plain = lambda h, x: (0.5 * jnp.tanh(h) + x, h)  # noqa: E731
    grad = lambda scan: jax.grad(lambda h: scan(plain, h, xs)[1].sum())(jnp.ones(3))  # noqa: E731
    assert_close(grad(functools.partial(ours, jacobian=slope)), grad(lax.scan), 1e-5)
