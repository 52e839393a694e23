"""Steps with a primitive that has no derivative, which values by `lax.scan` do not ask for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.forward import Recurrence
from parscan_bp.forward.kinks import kinks_of

XS = jnp.linspace(0.1, 1, 6)
METHODS = [pb.Chunks(), pb.Newton(), pb.FixedPoint(), "frozen_activations"]
SOLVERS = [None, pb.Sweep(), pb.Sweep(recompute=False), pb.Blelloch(), pb.Sweep(otherwise="lax")]


# jnp.nextafter has a derivative from jax 0.12 on.


def of_carry(c, x):
    return jax.lax.zeta(jnp.full_like(c, 2), 1.5 + 0.5 * c + x), c


def of_input(c, x):
    return 0.5 * c + jax.lax.zeta(jnp.full_like(x, 2), 1 + x), c


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_method_names_it_and_itself(method):
    words = r"forward=.*zeta: is given a value that moves .*forward='exact' takes any step"
    with pytest.raises(NotImplementedError, match=words):
        pb.scan(of_carry, 0.0, XS, forward=method)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_method_takes_it_where_the_carry_does_not_reach_it(method):
    got, want = pb.scan(of_input, 0.0, XS, forward=method), jax.lax.scan(of_input, 0.0, XS)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6)


def of_output(c, x):
    return jnp.tanh(0.5 * c + x), jax.lax.zeta(jnp.full_like(c, 2), 3 + c)


@jax.custom_jvp
def with_rule(c, x):
    return of_output(c, x)


@with_rule.defjvp
def _(primals, tangents):
    (c, x), (dc, dx) = primals, tangents
    new, y = with_rule(c, x)
    return (new, y), ((1 - new**2) * (0.5 * dc + dx), dc)


HELD = {
    "bare": of_output,
    "jit": jax.jit(of_output),
    "checkpoint": jax.checkpoint(of_output),
    "custom_jvp": with_rule,
    "cond": lambda c, x: jax.lax.cond(x < 2, of_output, lambda c, x: (c, c), c, x),
}


@pytest.mark.sampled(of=[METHODS[0], METHODS[3]])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_method_takes_it_where_only_an_output_reads_it(method):
    """However the call is held that makes both."""
    frozen = method == "frozen_activations"  # takes no cond
    calls = [f for name, f in HELD.items() if not (frozen and name == "cond")]

    def step(c, x):
        news, ys = zip(*(f(c, x) for f in calls), strict=True)
        return sum(news) / len(news), ys

    got, want = pb.scan(step, 0.0, XS, forward=method), jax.lax.scan(step, 0.0, XS)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


@pytest.mark.parametrize("held", ["bare", "jit"])
def test_kinks_that_only_an_output_has_are_none_of_the_step(held):
    step = lambda c, x: (jnp.tanh(0.5 * c + x), jnp.sign(c))  # noqa: E731
    step = jax.jit(step) if held == "jit" else step
    assert not kinks_of(Recurrence(lambda c, x: step(c, x)[0], jnp.zeros(()), XS, 6))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_solver_is_as_lax_scan(solver):
    run = lambda xs: pb.scan(of_carry, 0.0, xs, solver=solver)[0]  # noqa: E731
    assert run(XS) == jax.lax.scan(of_carry, 0.0, XS)[0]
    with pytest.raises(NotImplementedError, match="zeta"):
        jax.grad(run)(XS)
