"""Programs with symbolic sizes, exported once for every batch and length."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import export

import parscan_bp
from parscan_bp.layers import Linear, init

SOLVERS = (
    parscan_bp.Sweep(),
    parscan_bp.Sweep(recompute=False),
    parscan_bp.Chunked(),
    parscan_bp.Blelloch(),
    parscan_bp.Associative(),
)
SIZES = {"b": 3, "t": 70}
SYMBOLIC = dict(zip(SIZES, export.symbolic_shape("b, t"), strict=True))


def _roll_out(scan):
    def loss(weight, h, xs):
        step = lambda h, x: (jnp.tanh(h @ weight + x), h.sum())  # noqa: E731
        h, ys = scan(step, h, xs)
        return (h**2).sum() + (ys**3).sum()

    return loss


def _check(exported, plain, shapes):
    """`exported`, with its letters left open, against `plain` at some sizes."""

    def arrays(sizes):
        return [tuple(sizes.get(size, size) for size in shape) for shape in shapes]

    program = export.export(jax.jit(exported))(
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in arrays(SYMBOLIC))
    )
    keys = jax.random.split(jax.random.key(0), len(shapes))
    at = [
        0.3 * jax.random.normal(key, shape) for key, shape in zip(keys, arrays(SIZES), strict=True)
    ]
    for got, want in zip(
        jax.tree.leaves(program.call(*at)), jax.tree.leaves(jax.jit(plain)(*at)), strict=True
    ):
        assert jnp.allclose(got, want, rtol=1e-5, atol=1e-6)


SHAPES = {
    "batch": ((4, 4), ("b", 4), (50, "b", 4)),
    "length": ((4, 4), (2, 4), ("t", 2, 4)),
    "both": ((4, 4), ("b", 4), ("t", "b", 4)),
}
MODES = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(f, argnums=(0, 1, 2)),
    "hvp": lambda f: lambda w, *rest: jax.jvp(jax.grad(lambda w: f(w, *rest)), (w,), (w + 1,)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_scan_of_symbolic_sizes(shapes, mode):
    ours, plain = (MODES[mode](_roll_out(scan)) for scan in (parscan_bp.scan, jax.lax.scan))
    _check(ours, plain, shapes)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_a_named_solver_gives_values_and_refuses_derivatives(solver):
    ours = _roll_out(functools.partial(parscan_bp.scan, solver=solver))
    _check(ours, _roll_out(jax.lax.scan), SHAPES["both"])
    with pytest.raises(NotImplementedError, match=r"size [bt] is symbolic .*solver=None.*'lax'"):
        _check(jax.grad(ours), None, SHAPES["both"])


def test_otherwise_leaves_derivatives_to_lax_scan_as_the_refusal_says():
    sweep = parscan_bp.Sweep(otherwise="lax")
    ours, plain = (
        jax.grad(_roll_out(scan))
        for scan in (functools.partial(parscan_bp.scan, solver=sweep), jax.lax.scan)
    )
    _check(ours, plain, SHAPES["both"])


def test_explain_says_why():
    h, xs = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4,), (SYMBOLIC["t"], 4)))
    plan = parscan_bp.explain(lambda h, x: (jnp.tanh(h + x), None), h, xs)
    assert plan.choice == "lax.scan" and "t is symbolic" in str(plan)


def _stack(solver):
    layers = [Linear(8), jax.nn.relu, Linear(2)]
    params = init(layers, jax.random.key(1), (5,))
    return params, lambda params, x: jnp.sum(
        parscan_bp.chain(layers, params, x, solver=solver) ** 2
    )


def test_a_chain_of_a_symbolic_batch():
    params, loss = _stack(None)
    gradient = functools.partial(jax.value_and_grad(loss), params)
    _check(gradient, gradient, [("b", 5)])


def test_a_chain_by_a_named_solver_refuses_derivatives():
    params, loss = _stack(parscan_bp.Sweep())
    forward = functools.partial(loss, params)
    _check(forward, forward, [("b", 5)])
    with pytest.raises(NotImplementedError, match=r"size b is symbolic .*Sweep\(otherwise='lax'\)"):
        _check(jax.grad(forward), None, [("b", 5)])
