"""Steps with a primitive that has no derivative, which values by `lax.scan` do not ask for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb

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


@pytest.mark.parametrize("method", METHODS[:3], ids=repr)
def test_a_method_takes_it_where_only_an_output_reads_it(method):
    got, want = pb.scan(of_output, 0.0, XS, forward=method), jax.lax.scan(of_output, 0.0, XS)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_solver_is_as_lax_scan(solver):
    run = lambda xs: pb.scan(of_carry, 0.0, xs, solver=solver)[0]  # noqa: E731
    assert run(XS) == jax.lax.scan(of_carry, 0.0, XS)[0]
    with pytest.raises(NotImplementedError, match="zeta"):
        jax.grad(run)(XS)
