"""Newton's method for a trajectory against `jax.lax.scan`: passes, exact states, overflow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.forward import Newton, Recurrence
from parscan_bp.forward.passes import WINDOW
from tests.forward.recurrences import (
    CALM,
    check_close,
    draw,
    elman,
    evaluated,
    growth,
    gru,
    lorenz,
    lstm,
    sequential,
    two_wells,
)

METHODS = {
    "dense": Newton(),
    "diagonal": Newton("diagonal"),
    "damped": Newton(damping=0.3),
    "damped diagonal": Newton("diagonal", damping="residual"),
    "by the residual": Newton(damping="residual"),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("gru", method) for method in METHODS),
        ("lstm", "dense"),
        ("lstm", "diagonal"),
        ("two wells", "dense"),
        ("two wells", "by the residual"),
    ],
)
def test_it_is_the_sequential_trajectory(name, method):
    recurrence = CALM[name](15)
    made = evaluated(METHODS[method], recurrence)
    assert made.converged
    check_close(made.states, sequential(recurrence))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_lengths(n):
    recurrence = elman(n)
    made = evaluated(Newton(), recurrence)
    assert made.converged and made.iterations <= n
    check_close(made.states, sequential(recurrence))


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="float64")
def test_doubles():
    recurrence = gru(21, jnp.float64)
    made = evaluated(Newton(), recurrence, 1e-14)
    assert made.converged
    check_close(made.states, sequential(recurrence), atol=1e-13)


def linear(n, elementwise=False):
    """Complex, of rows, and with a second leaf that nothing returns to."""
    w = draw(1, 3) if elementwise else draw(1, 3, 3) / 2
    turn = jnp.exp(1j * jnp.arange(3.0)).astype(jnp.complex64)

    def step(carry, u):
        x, z = carry
        return (x * w if elementwise else x @ w) + u, z * turn + jnp.sum(u)

    init = draw(2, 2, 3), jnp.ones(3, jnp.complex64)
    return Recurrence(step, init, draw(3, n, 2, 3), n)


@pytest.mark.parametrize("elementwise", [False, True])
def test_a_linear_step_takes_one_pass(elementwise):
    recurrence = linear(13, elementwise)
    made = evaluated(Newton(), recurrence)
    assert made.converged and made.iterations == 1
    check_close(made.states, sequential(recurrence), atol=1e-4)


def test_an_elementwise_step_is_a_diagonal_by_either_name():
    recurrence = two_wells(13)
    a, b = (evaluated(Newton(name), recurrence) for name in ("dense", "diagonal"))
    assert a.iterations == b.iterations
    np.testing.assert_array_equal(a.states, b.states)
    program = str(jax.make_jaxpr(lambda: Newton().evaluate(recurrence, 1e-6))())
    assert "dot_general" not in program


def test_a_diagonal_does_not_join_the_leaves_nor_multiply_matrices():
    recurrence = lstm(13)
    program = str(jax.make_jaxpr(lambda: Newton("diagonal").evaluate(recurrence, 1e-6))())
    assert "f32[13,2,6,6]" not in program and "f32[13,2,6]" not in program
    program = str(jax.make_jaxpr(lambda: Newton().evaluate(recurrence, 1e-6))())
    assert "f32[13,2,6,6]" in program  # rows by themselves, leaves joined


@pytest.mark.parametrize("method", ["dense", "diagonal", "by the residual"])
def test_after_i_passes_the_first_i_states_are_exact(method):
    # Slopes of about 3: the tail is far off for as long, and a rounding grows as much.
    recurrence, passes = elman(40, gain=3.0), 3
    made = evaluated(
        dataclasses.replace(METHODS[method], max_passes=passes), recurrence, 0.0, jax.jit
    )
    assert not made.converged and made.iterations == passes
    states, want = made.states, sequential(recurrence, jax.jit)
    np.testing.assert_allclose(states[:passes], want[:passes], rtol=0, atol=1e-5)
    image = jax.vmap(recurrence.step)(recurrence.entering(states), recurrence.inputs)
    np.testing.assert_allclose(states[:passes], image[:passes], rtol=0, atol=2e-7)
    assert jnp.abs(states - want).max() > 0.1


@pytest.mark.parametrize("n", [3, 9])
def test_as_many_passes_as_steps_are_enough(n):
    recurrence = elman(n, gain=30.0)
    made = evaluated(Newton(max_passes=n), recurrence, 0.0, jax.jit)
    assert made.converged and made.iterations <= n
    check_close(made.states, sequential(recurrence))


@pytest.mark.parametrize("solver", [pb.Associative(), pb.Sweep()], ids=["tree", "sweep"])
def test_a_pass_that_overflows_is_kept_as_far_as_it_is_sound(solver):
    recurrence = growth(513)  # the guess has a slope of 1.3, whose power is infinite
    made = evaluated(Newton(solver=solver), recurrence)
    assert made.converged and made.iterations < 30
    check_close(made.states, sequential(recurrence))


def test_chaos_is_said_not_to_converge():
    recurrence = lorenz(256)
    made = evaluated(Newton(max_passes=12), recurrence)
    assert not made.converged and made.iterations <= 12
    assert jnp.isfinite(made.states).all()
    check_close(made.states[:8], sequential(recurrence)[:8], atol=1e-4)


def test_chaos_is_given_up_by_its_pace():
    """What converges slowly is not, as a linear pace is one."""
    chaos = Recurrence(lambda x, u: 3.9 * x * (1 - x), jnp.full(2, 0.3), None, 2000)
    made = evaluated(Newton(), chaos)
    assert not made.converged and 2 * WINDOW <= made.iterations <= 5 * WINDOW
    slow = Recurrence(lambda x, u: 0.8 * x + u, jnp.zeros(2), 0.3 * draw(1, 400, 2), 400)
    made = evaluated(Newton(damping=0.9), slow)
    assert made.converged and made.iterations > 2 * WINDOW
    check_close(made.states, sequential(slow))


def test_a_trajectory_that_leaves_the_range_is_given_up_at_once():
    squares = Recurrence(lambda x, u: x * x, jnp.full(2, 2.0, jnp.float32), None, 50)
    made = evaluated(Newton(), squares)
    assert not made.converged and made.iterations <= 20


def test_an_input_that_is_nan_is_not_hidden():
    recurrence = elman(20)
    inputs = recurrence.inputs.at[9, 0, 0].set(jnp.nan)
    made = evaluated(Newton(), Recurrence(recurrence.step, recurrence.init, inputs, 20))
    assert not made.converged


def test_a_row_that_fails_leaves_the_others_alone():
    gains = jnp.array([[0.5], [30.0], [0.8]], jnp.float32)
    inputs = draw(1, 300, 3, 4)
    recurrence = Recurrence(
        lambda x, u: jnp.tanh(gains * jnp.roll(x, 1, -1) + u), draw(2, 3, 4), inputs, 300
    )
    made = evaluated(Newton(max_passes=12), recurrence)
    assert not made.converged
    want = sequential(recurrence)
    check_close(made.states[:, ::2], want[:, ::2])


SOLVERS = {
    "sweep": pb.Sweep(),
    "chunked": pb.Chunked(2),
    "scaled": pb.Associative(scaled=True),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers(solver):
    recurrence = lstm(7)
    made = evaluated(Newton(solver=SOLVERS[solver]), recurrence)
    assert made.converged
    check_close(made.states, sequential(recurrence))


def test_a_sweep_is_given_no_matrices():
    recurrence = gru(13)
    run = lambda: Newton(solver=pb.Sweep()).evaluate(recurrence, 1e-6)  # noqa: E731
    assert "f32[13,2,3,3]" not in str(jax.make_jaxpr(run)())


def test_a_guess_saves_passes():
    recurrence = gru(13)
    want = sequential(recurrence)
    guesses = None, want + 1e-3 * draw(1, *want.shape), want
    far, near, there = (evaluated(Newton(guess=guess), recurrence).iterations for guess in guesses)
    assert far > near > there == 0


def test_scalars_and_bfloat16():
    halved = Recurrence(
        lambda x, u: jnp.sin(x) + u, jnp.bfloat16(0.5), jnp.ones(9, jnp.bfloat16), 9
    )
    made = evaluated(Newton(), halved, 2.0**-6)
    assert made.converged and made.states.dtype == jnp.bfloat16
    check_close(*(a.astype(jnp.float32) for a in (made.states, sequential(halved))), atol=0.1)


def test_under_vmap_what_is_done_stays_as_it_is():
    rates = jnp.array([0.1, 4.0, 0.9], jnp.float32)

    def run(rate):
        step = lambda x, u: jnp.tanh(rate * x + u)  # noqa: E731
        wave = jnp.sin(jnp.arange(40, dtype=jnp.float32))
        return Newton().evaluate(Recurrence(step, jnp.zeros((), jnp.float32), wave, 40), 1e-6)

    together = jax.jit(jax.vmap(run))(rates)
    for k, rate in enumerate(rates):
        alone = jax.jit(run)(rate)
        assert together.iterations[k] == alone.iterations
        np.testing.assert_array_equal(together.states[k], alone.states)
    assert len(set(together.iterations.tolist())) > 1


def custom(x):
    half = jax.custom_vjp(lambda x: x / 2)
    half.defvjp(lambda x: (x / 2, None), lambda _, ct: (ct / 2,))
    return half(x)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Newton("full"), ValueError, "jacobian: got 'full'"),
        (lambda: Newton(damping=1.5), ValueError, "damping: got 1.5"),
        (lambda: Newton(damping=-0.5), ValueError, "damping: got -0.5"),
        (lambda: Newton(damping="much"), ValueError, "damping: got 'much'"),
        (lambda: Newton(solver=pb.Sweep), TypeError, "solver: Sweep is a class"),
        (lambda: Newton(solver=pb.Sweep(recompute=False)), NotImplementedError, "recompute"),
        (lambda: Newton(solver=pb.Planned()), NotImplementedError, "Planned"),
        (lambda: Newton(max_passes=0), ValueError, "max_passes: got 0"),
        (lambda: evaluated(Newton(guess=jnp.zeros(7)), elman(7)), ValueError, "guess: got a leaf"),
        (
            lambda: evaluated(Newton(solver=pb.Associative(memory_limit=99)), elman(7)),
            ValueError,
            "memory_limit",
        ),
        (
            lambda: evaluated(Newton(), Recurrence(lambda x, u: custom(x), jnp.ones(2), None, 7)),
            NotImplementedError,
            "custom_vjp_call",
        ),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()
