"""Loops in loops, stacks in loops, loops in stacks: derivatives of both orders.

Equal lengths hide a mistake of axes from every check of shapes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp import layers
from tests.quickly import jit_quickly

SOLVERS = {
    "auto": None,
    "sweep": pb.Sweep(),
    "keeping": pb.Sweep(recompute=False),
    "blelloch": pb.Blelloch(),
    "chunked": pb.Chunked(chunks=2),
}
X64 = jnp.zeros(()).dtype == jnp.float64
TOLERANCE = {"rtol": 1e-8, "atol": 1e-9} if X64 else {"rtol": 2e-3, "atol": 2e-3}
HIDDEN = 2
LENGTHS = {"equal": (3, 3), "unequal": (3, 2)}


def _scan(name):
    return lax.scan if name == "lax" else functools.partial(pb.scan, solver=SOLVERS[name])


def _arguments(outer, inner):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(HIDDEN, HIDDEN)) / 2
    xs = rng.normal(size=(outer, inner, HIDDEN))
    return jnp.asarray(w, float), jnp.asarray(xs, float)


def scan_in_scan(outer, inner, w, xs):
    def step(h, x):
        return inner(lambda c, z: (jnp.tanh(w @ c + z), c * z), h, x)

    h, ys = outer(step, jnp.full(HIDDEN, 0.5, w.dtype), xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


def scan_of_outputs(outer, inner, w, xs):
    """The inner loop is over what the outer one has made; its carry is not the outer one's."""

    def step(h, x):
        e, ys = inner(lambda c, z: (c * jnp.cos(z) + z, jnp.sin(c)), jnp.ones((), w.dtype), x @ w)
        return jnp.tanh(w @ h + e * ys.mean(0)), (e, ys)

    inner = functools.partial(_by_columns, inner)
    h, (e, ys) = outer(step, jnp.full(HIDDEN, 0.5, w.dtype), xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys)) + jnp.sum(e**3)


def _by_columns(scan, f, init, xs):
    return jax.vmap(lambda x: scan(f, init, x), in_axes=1, out_axes=(0, 1))(xs)


def three_loops(outer, inner, w, xs):
    def step(h, x):
        def middle(c, z):
            c, _ = inner(lambda d, k: (jnp.tanh(w @ d * k + z), None), c, jnp.array([0.5, 1.5]))
            return c, c

        return outer(middle, h, x)

    h, ys = outer(step, jnp.full(HIDDEN, 0.5, w.dtype), xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


LOOPS = {f.__name__: f for f in (scan_in_scan, scan_of_outputs, three_loops)}


def _grad_of_grad(loss, w, xs):
    gradient = jax.grad(loss, (0, 1))
    return jax.grad(lambda w, xs: jnp.sum(gradient(w, xs)[0] ** 2), (0, 1))(w, xs)


def _reverse_over_forward(loss, w, xs):
    return jax.grad(lambda w: jax.jvp(lambda w: loss(w, xs), (w,), (w,))[1])(w)


MODES = {
    "grad": lambda loss, w, xs: jax.grad(loss, (0, 1))(w, xs),
    "hessian": lambda loss, w, xs: jax.hessian(loss)(w, xs),
    "grad of grad": _grad_of_grad,
    "reverse over forward": _reverse_over_forward,
}


def assert_close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, **TOLERANCE)


@functools.cache
def _by_lax(loop, lengths, mode):
    return _derivative(loop, ("lax", "lax"), lengths, mode)


def _derivative(loop, pair, lengths, mode):
    loss = functools.partial(LOOPS[loop], *map(_scan, pair))
    return jit_quickly(functools.partial(MODES[mode], loss))(*_arguments(*LENGTHS[lengths]))


# The outer loop's solver and the inner one's.
PAIRS = [
    *(("sweep", "sweep"), ("keeping", "keeping"), ("blelloch", "blelloch")),
    *(("blelloch", "sweep"), ("sweep", "blelloch"), ("chunked", "keeping")),
    *(("sweep", "lax"), ("lax", "sweep"), ("auto", "sweep")),
]


@pytest.mark.parametrize(
    "pair, lengths, mode",
    [
        (("sweep", "sweep"), "equal", "reverse over forward"),
        (("sweep", "sweep"), "unequal", "grad of grad"),
        (("blelloch", "sweep"), "equal", "hessian"),
    ],
)
def test_a_scan_in_a_scan(pair, lengths, mode):
    got = _derivative("scan_in_scan", pair, lengths, mode)
    assert_close(got, _by_lax("scan_in_scan", lengths, mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pair", PAIRS, ids=" of ".join)
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_in_loops(loop, pair, lengths, mode):
    assert_close(_derivative(loop, pair, lengths, mode), _by_lax(loop, lengths, mode))


# Stacks of layers in a loop, and loops in a stack.

STACK = [layers.Linear(3), layers.Tanh(), layers.Linear(HIDDEN)]
CHAIN_SOLVERS = {"auto": None, "sweep": pb.Sweep(), "blelloch": pb.Blelloch()}


def _stack_params():
    rng = np.random.default_rng(1)
    sizes = [(HIDDEN, 3), (3, HIDDEN)]
    first, last = (
        {"kernel": jnp.asarray(rng.normal(size=s) / 2), "bias": jnp.zeros(s[1])} for s in sizes
    )
    return [first, None, last]


def _plain(stack, params, x):
    return layers.activations([layers.as_layer(layer) for layer in stack], params, x)[-1]


def chain_in_scan(scan, chain, params, xs):
    step = lambda h, x: (chain(STACK, params, h + x), h)  # noqa: E731
    h, ys = scan(step, jnp.ones(xs.shape[1:]), xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


def scan_in_chain(scan, chain, params, xs):
    """A recurrence along the features of every entry, as a layer."""

    def loop(p, x):
        step = lambda h, z: (jnp.tanh(p * h + z), h)  # noqa: E731
        return scan(step, jnp.ones((), x.dtype), x)[1]

    stack = [*STACK, layers.Function(loop), layers.Linear(3)]
    last = {"kernel": params[0]["kernel"], "bias": params[0]["bias"]}
    params = [*params, jnp.asarray(0.5, xs.dtype), last]
    return jnp.sum(jnp.sin(chain(stack, params, xs[0])))


def hessian_products(loss, params, xs):
    gradient = jax.grad(loss, (0, 1))
    tangents = jax.tree.map(lambda v: jnp.cos(jnp.arange(1.0, v.size + 1)).reshape(v.shape), params)
    return jax.jvp(lambda p: gradient(p, xs), (params,), (tangents,))


@pytest.mark.parametrize(
    "program, batch, outer, inner",
    [(chain_in_scan, 3, "sweep", "auto"), (scan_in_chain, 2, "sweep", "sweep")],
)
def test_a_stack_in_a_loop_and_a_loop_in_a_stack(program, batch, outer, inner):
    _check_stacks_and_loops(program, batch, outer, inner)


@pytest.mark.slow
@pytest.mark.parametrize("inner", CHAIN_SOLVERS)
@pytest.mark.parametrize("outer", ["auto", "sweep", "keeping", "blelloch"])
@pytest.mark.parametrize("batch", [3, 2])  # equal to the number of steps, and not
@pytest.mark.parametrize("program", [chain_in_scan, scan_in_chain])
def test_stacks_and_loops(program, batch, outer, inner):
    _check_stacks_and_loops(program, batch, outer, inner)


def _check_stacks_and_loops(program, batch, outer, inner):
    if program is scan_in_chain and inner == "blelloch":
        pytest.skip("a Function is matrix-free, which a tree does not take")
    xs = jnp.asarray(np.random.default_rng(2).normal(size=(3, batch, HIDDEN)))
    chain = functools.partial(pb.chain, solver=CHAIN_SOLVERS[inner])
    got, want = (
        jit_quickly(functools.partial(hessian_products, functools.partial(program, *how)))(
            _stack_params(), xs
        )
        for how in ((_scan(outer), chain), (lax.scan, _plain))
    )
    assert_close(got, want)
