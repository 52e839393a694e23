"""A solver whose caller allows it leaves to `lax.scan` what another named one refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.scan.within import solve_within


@dataclasses.dataclass(frozen=True, repr=False)
class OrLax(pb.Sweep):
    leaves_to_lax = True


XS = jnp.arange(1.0, 5.0, dtype=jnp.float32)


@jax.custom_vjp
def _doubled(v):
    return v + v


_doubled.defvjp(lambda v: (_doubled(v), None), lambda _, ct: (2 * ct,))


def _looped(h, x):
    return lax.while_loop(lambda v: v < 3.0, lambda v: 2 * v, h + x), h


def _printed(h, x):
    jax.debug.print("{}", h)
    return h + x, h


REFUSED = {
    "custom_vjp_call": lambda h, x: (_doubled(h) + x, h),
    "while": _looped,
    "debug": _printed,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_is_refused_is_left(name):
    step = REFUSED[name]
    with pytest.raises(NotImplementedError, match=name):
        pb.scan(step, 0.5, XS, solver=pb.Sweep())
    carry, ys, report = pb.scan(step, 0.5, XS, solver=OrLax(), report=True)
    want = lax.scan(step, 0.5, XS)
    np.testing.assert_array_equal(carry, want[0])
    np.testing.assert_array_equal(ys, want[1])
    assert report.fell_back and report.status == pb.Status.OK
    explained = pb.explain(step, 0.5, XS, solver=OrLax())
    assert explained.choice == "lax.scan"
    assert "leaves it to lax.scan" in explained.reason and name in explained.reason


def test_derivatives_are_those_of_lax_scan():
    loss = lambda h, scan: scan(REFUSED["custom_vjp_call"], h, XS)[0]  # noqa: E731
    ours = functools.partial(pb.scan, solver=OrLax())
    assert jax.grad(loss)(0.5, ours) == jax.grad(loss)(0.5, lax.scan) == 16


def test_what_is_not_refused_is_solved():
    step = lambda h, x: (jnp.tanh(h + x), h)  # noqa: E731
    assert pb.explain(step, 0.5, XS, solver=OrLax()).reason == "named by the caller"
    assert not pb.scan(step, 0.5, XS, solver=OrLax(), report=True)[2].fell_back


def test_a_step_that_python_runs():
    def step(h, x):
        return (2 * h if x > 2 else h) + x, h

    with jax.disable_jit():
        got = pb.scan(step, 0.5, XS, solver=OrLax(), report=True)
        assert got[0] == lax.scan(step, 0.5, XS)[0] and got[2].fell_back
        assert "disable_jit" in pb.explain(step, 0.5, XS, solver=OrLax()).reason
        ours = solve_within(lambda h: lax.scan(step, h, XS)[0], 0.5, solver=OrLax(), report=True)
        assert ours[0] == got[0] and ours[1].fell_back
        traced = lambda h, x: (jnp.tanh(h + x), h)  # noqa: E731
        assert not pb.scan(traced, 0.5, XS, solver=OrLax(), report=True)[2].fell_back
    with pytest.raises(jax.errors.TracerBoolConversionError):
        pb.scan(step, 0.5, XS, solver=OrLax())


def test_symbolic_sizes():
    (n,) = jax.export.symbolic_shape("n")
    step = lambda h, x: (jnp.tanh(h + x), h)  # noqa: E731
    grad = jax.grad(lambda h, xs, s: pb.scan(step, h, xs, solver=s)[0])
    types = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    with pytest.raises(NotImplementedError, match="symbolic"):
        jax.export.export(jax.jit(functools.partial(grad, s=pb.Sweep())))(*types)
    made = jax.export.export(jax.jit(functools.partial(grad, s=OrLax())))(*types)
    assert made.call(jnp.float32(0.5), XS) == grad(jnp.float32(0.5), XS, None)


def test_a_function_without_a_loop():
    with pytest.raises(NotImplementedError, match="no loop"):
        solve_within(jnp.sin, 0.5, solver=pb.Sweep())
    assert solve_within(jnp.sin, 0.5, solver=OrLax()) == jnp.sin(0.5)


def test_a_chain_of_symbolic_sizes():
    layers, (n,) = [pb.layers.Linear(2), jax.nn.relu], jax.export.symbolic_shape("n")
    params = pb.layers.init(layers, jax.random.key(0), (3,))
    solver, types = OrLax(), jax.ShapeDtypeStruct((n, 3), jnp.float32)

    def value(x):
        y, report = pb.chain(layers, params, x, solver=solver, report=True)
        return jnp.sum(y), report.fell_back

    made = jax.export.export(jax.jit(jax.grad(value, has_aux=True)))(types)
    slope, fell_back = made.call(jnp.ones((4, 3), jnp.float32))
    assert fell_back and slope.shape == (4, 3)
