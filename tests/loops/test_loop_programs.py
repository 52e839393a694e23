"""Programs around a while loop, differentiated: against loops of known length and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.loops.loop_programs import PROGRAMS
from tests.quickly import jit_quickly

CLOSE = 1e-10
DAILY = ("fixed point", "gcd", "never runs")


def _counted(program, p):
    """The carries of both loops, to be equal to the last bit, and how many steps they are."""

    def loop(cond, body, init):
        return pb.while_loop(cond, body, init, report=True)

    @jax.jit
    def both(p):
        return program.run(loop, p), program.run(lax.while_loop, p)

    (ours, report), theirs = both(p)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)
    assert report.finished
    return int(report.steps)


def _modes(f, p):
    along = jnp.linspace(0.5, 1.5, p.size, dtype=p.dtype)
    value, tangent = jax.jvp(f, (p,), (along,))
    gradient, product = jax.jvp(jax.grad(f), (p,), (along,))
    return {"value": value, "tangent": tangent, "gradient": gradient, "product": product}


@pytest.mark.sampled(of=DAILY)
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_those_of_the_steps_that_ran(name):
    program = PROGRAMS[name]
    with jax.enable_x64(True):
        p = jnp.asarray(program.p)
        steps = _counted(program, p)
        assert (steps == 0) == (name == "never runs") and steps <= 40
        ours = lambda p: program.read(program.run(_bounded, p))  # noqa: E731
        theirs = lambda p: program.of_steps(p, steps)  # noqa: E731
        got, want = jit_quickly(lambda p: (_modes(ours, p), _modes(theirs, p)))(p)
        for mode, value in want.items():
            scale = 1 + np.abs(value).max()
            np.testing.assert_allclose(
                got[mode] / scale, value / scale, atol=CLOSE, rtol=0, err_msg=mode
            )
        if steps:
            np.testing.assert_allclose(got["gradient"], _differences(program, p), rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_loops_that_python_runs(name):
    program = PROGRAMS[name]
    with jax.enable_x64(True):
        p = jnp.asarray(program.p)
        ours = jax.jit(jax.value_and_grad(lambda p: program.read(program.run(_bounded, p))))
        for got, want in zip(ours(p), jax.value_and_grad(program.by_python)(p), strict=True):
            np.testing.assert_allclose(got, want, rtol=CLOSE, atol=CLOSE)


def _bounded(cond, body, init):
    return pb.while_loop(cond, body, init, max_steps=40)


def _differences(program, p):
    """Of the values by `lax.while_loop`; nobody of these programs is at a step's edge."""
    value = jit_quickly(lambda p: program.read(program.run(lax.while_loop, p)))
    eps = 1e-5
    sides = [[value(p.at[k].add(sign * eps)) for k in range(p.size)] for sign in (1, -1)]
    return (np.asarray(sides[0]) - np.asarray(sides[1])) / (2 * eps)


@pytest.mark.parametrize("max_steps", [40, pytest.param(None, marks=pytest.mark.slow)])
def test_a_batch_of_different_lengths(max_steps):
    """Each entry as it is alone."""
    program = PROGRAMS["newton"]
    with jax.enable_x64(True):
        ps = jnp.array([[2.0, 3.0], [0.5, 300.0], [1.0, 0.01]])

        def loop(cond, body, init):
            return pb.while_loop(cond, body, init, max_steps=max_steps, report=True)

        value = lambda p: program.run(loop, p)  # noqa: E731
        run = jax.value_and_grad(value, has_aux=True)
        (got, report), slopes = jit_quickly(jax.vmap(run))(ps)
        steps = report.steps.tolist()
        assert len(set(steps)) == 3 and all(report.finished)

        @jit_quickly
        def alone(ps):
            run = jax.value_and_grad(program.of_steps)
            return [run(p, n) for p, n in zip(ps, steps, strict=True)]

        for k, (value, slope) in enumerate(alone(ps)):
            np.testing.assert_allclose(got[k], value, rtol=1e-14)
            np.testing.assert_allclose(slopes[k], slope, rtol=CLOSE)
