"""Picard's iteration against `jax.lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.forward import FixedPoint, Recurrence
from tests.forward.recurrences import CALM, check_close, elman, evaluated, gru, sequential


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_it_is_the_sequential_trajectory(name):
    recurrence = CALM[name](61)
    made = evaluated(FixedPoint(), recurrence)
    assert made.converged and made.iterations <= 61
    check_close(made.states, sequential(recurrence))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_as_many_passes_as_steps_are_enough(n):
    # It expands, so that nothing but the exact states in front ends it.
    recurrence = elman(n, gain=3.0)
    made = evaluated(FixedPoint(), recurrence, 0.0, jax.jit)
    assert made.converged and n <= made.iterations <= n + 1  # see passes.py
    check_close(made.states, sequential(recurrence, jax.jit), atol=1e-5)


def test_too_few_passes_are_not_converged():
    made = evaluated(FixedPoint(max_passes=5), elman(61, gain=3.0))
    assert not made.converged and made.iterations == 5
    want = sequential(elman(61, gain=3.0))
    check_close(made.states[:5], want[:5], atol=1e-5)
    assert jnp.abs(made.states - want)[6:].max() > 0.1


def test_the_trajectory_itself_as_guess_takes_no_pass():
    recurrence = gru(33)
    made = evaluated(FixedPoint(), recurrence)
    again = evaluated(FixedPoint(made.states), recurrence)
    assert again.converged and again.iterations == 0
    assert (again.states == made.states).all()


def test_what_is_not_finite_ends_it():
    doubling = Recurrence(lambda x, u: x * x, jnp.full(2, 3.0, jnp.float32), None, 40)
    made = evaluated(FixedPoint(), doubling)
    assert not made.converged and made.iterations < 10


def test_an_infinite_guess_is_no_solution():
    step = lambda x, u: jnp.where(jnp.isinf(x), u, x / 2)  # noqa: E731
    recurrence = Recurrence(step, jnp.ones((), jnp.float32), jnp.ones(3, jnp.float32), 3)
    made = evaluated(FixedPoint(jnp.array([0.5, 0.25, jnp.inf])), recurrence)
    assert jnp.isfinite(made.states).all() or not made.converged


def test_it_takes_any_step():
    @jax.custom_vjp
    def half(x):
        return x / 2

    half.defvjp(lambda x: (x / 2, None), lambda _, ct: (ct / 2,))
    step = lambda x, u: half(jax.lax.while_loop(lambda v: v > 4, lambda v: v / 2, x)) + u  # noqa: E731
    recurrence = Recurrence(step, jnp.ones((), jnp.float32), jnp.arange(9, dtype=jnp.float32), 9)
    made = evaluated(FixedPoint(), recurrence)
    assert made.converged
    check_close(made.states, sequential(recurrence))


def test_under_vmap_what_is_done_stays_as_it_is():
    rates = jnp.array([0.1, 0.9, 0.5], jnp.float32)

    def run(rate):
        step = lambda x, u: jnp.tanh(rate * x + u)  # noqa: E731
        wave = jnp.sin(jnp.arange(40, dtype=jnp.float32))
        return FixedPoint().evaluate(Recurrence(step, jnp.zeros((), jnp.float32), wave, 40), 1e-6)

    together = jax.jit(jax.vmap(run))(rates)
    for k, rate in enumerate(rates):
        alone = jax.jit(run)(rate)
        assert together.converged[k] and together.iterations[k] == alone.iterations
        np.testing.assert_array_equal(together.states[k], alone.states)
    assert together.iterations[0] < together.iterations[1]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FixedPoint(max_passes=0), ValueError, "max_passes: got 0"),
        (lambda: FixedPoint(max_passes=2.5), TypeError, "max_passes: got 2.5"),
        (lambda: evaluated(FixedPoint(jnp.zeros((3, 2))), elman(7)), ValueError, "guess: got"),
        (lambda: evaluated(FixedPoint({"h": 1}), elman(7)), ValueError, "guess: got a pytree"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()
