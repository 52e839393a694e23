"""Frozen activations: what steps they take, and the triangular system of Naumov's eq. 13."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.forward import FrozenActivations, Newton, Recurrence
from tests.forward.recurrences import (
    check_close,
    draw,
    elman,
    evaluated,
    gru,
    lstm,
    sequential,
    two_wells,
)

N, H = 13, 4


def step_of(activation, rows=2):
    """activation(x W + b + u), of rows."""
    w, b = 0.4 * draw(1, H, H), 0.3 * draw(2, H)
    step = lambda x, u: activation(x @ w + b + u)  # noqa: E731
    return Recurrence(step, draw(3, rows, H), draw(4, N, rows, H), N)


ACTIVATIONS = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,  # f(0) = 1/2
    "relu": jax.nn.relu,  # a custom_jvp
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "leaky": lambda y: jnp.where(y > 0, y, 0.1 * y),
    "affine": lambda y: 1 - y,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_it_is_the_sequential_trajectory(name):
    recurrence = step_of(ACTIVATIONS[name])
    made = evaluated(FrozenActivations(), recurrence)
    assert made.converged and made.iterations < N
    check_close(made.states, sequential(recurrence), atol=1e-4)


def several(n):
    """Two leaves, each a function of an affine map of both; one is moved on the way."""
    w, v = 0.3 * draw(1, 3, 3), 0.3 * draw(2, 3, 3)

    def step(carry, u):
        a, b = carry["a"], carry["b"]
        return {"a": jnp.tanh(a @ w + b[::-1] + u), "b": jax.nn.sigmoid(jnp.sum(a) + b @ v)}

    return Recurrence(step, {"a": draw(3, 3), "b": draw(4, 3)}, draw(5, n, 3), n)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_pytree_and_lengths(n):
    recurrence = several(n)
    made = evaluated(FrozenActivations(), recurrence)
    assert made.converged and made.iterations <= n
    check_close(made.states, sequential(recurrence))


def test_an_elementwise_step_is_one_of_the_carry_itself():
    recurrence = two_wells(13)
    made = evaluated(FrozenActivations(), recurrence)
    assert made.converged
    check_close(made.states, sequential(recurrence))


def test_a_pass_solves_equation_13():
    w, b, u = (a.astype(jnp.float32) for a in (0.4 * draw(1, H, H), draw(2, H), draw(4, N, H)))
    recurrence = Recurrence(lambda x, u: jnp.tanh(w @ x + b + u), draw(3, H), u, N)
    guess = sequential(recurrence) + 0.1 * draw(5, N, H)
    made = evaluated(FrozenActivations(guess, max_passes=1), recurrence, 0.0)
    y = recurrence.entering(guess) @ w.T + b + u
    d, x, want = jnp.tanh(y) / y, recurrence.init, []
    for t in range(N):
        x = d[t] * (w @ x + b + u[t])
        want.append(x)
    np.testing.assert_allclose(made.states, jnp.stack(want), atol=1e-5)


def test_zero_preactivations_take_the_limit():
    # y = 0 at every step of the guess, and all along the first row.
    recurrence = Recurrence(lambda x, u: jnp.tanh(x + u), jnp.zeros((2, 1)), None, 9)
    inputs = jnp.zeros((9, 2, 1)).at[4, 1].set(0.5)
    recurrence = Recurrence(recurrence.step, recurrence.init, inputs, 9)
    made = evaluated(FrozenActivations(), recurrence)
    assert made.converged and (made.states[:, 0] == 0).all()
    check_close(made.states, sequential(recurrence))


def test_a_linear_step_takes_one_pass_and_a_guess_none():
    recurrence = step_of(ACTIVATIONS["affine"])
    made = evaluated(FrozenActivations(), recurrence)
    assert made.iterations == 1
    assert evaluated(FrozenActivations(made.states), recurrence).iterations == 0


def test_the_trajectory_of_nearly_the_same_weights_is_a_good_guess():
    passes = {}
    before = evaluated(FrozenActivations(), elman(N))
    for name, guess in {"far": None, "near": before.states}.items():
        made = evaluated(FrozenActivations(guess), elman(N, gain=0.501))
        assert made.converged
        check_close(made.states, sequential(elman(N, gain=0.501)))
        passes[name] = int(made.iterations)
    assert passes["near"] < passes["far"]


@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Chunked(2)])
def test_solvers(solver):
    recurrence = several(7)
    made = evaluated(FrozenActivations(solver=solver), recurrence)
    assert made.converged
    check_close(made.states, sequential(recurrence))


REFUSED = {
    "gru": (gru(7), "split mixes the numbers that logistic has made"),
    "lstm": (lstm(7), "split mixes the numbers that logistic has made"),
    "a leak": (
        Recurrence(lambda x, u: x / 2 + jnp.tanh(x @ jnp.ones((3, 3))), jnp.ones(3), None, 7),
        "add takes 2 values",
    ),
    "two layers": (
        Recurrence(lambda x, u: jnp.tanh(x) @ jnp.ones((3, 3)), jnp.ones(3), None, 7),
        "dot_general mixes the numbers that tanh has made",
    ),
    "softmax": (Recurrence(lambda x, u: jax.nn.softmax(x), jnp.ones(3), None, 7), "mixes|neither"),
    "a product": (Recurrence(lambda x, u: x * x[::-1], jnp.ones(3), None, 7), "mul"),
    "one number chooses": (
        Recurrence(
            lambda x, u: jnp.where(x[0] > 0, jnp.tanh(x), x), jnp.ones(3, jnp.float32), None, 7
        ),
        "select_n|broadcast_in_dim|and",
    ),
    "a constant": (Recurrence(lambda x, u: u, jnp.ones(3), jnp.ones((7, 3)), 7), "leaf 0"),
    "a loop": (
        Recurrence(
            lambda x, u: jax.lax.fori_loop(0, 3, lambda _, v: jnp.tanh(v), x), jnp.ones(3), None, 7
        ),
        "scan is neither",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_steps_are_refused_by_name(name):
    recurrence, words = REFUSED[name]
    with pytest.raises(NotImplementedError, match=words):
        evaluated(FrozenActivations(), recurrence)


def test_it_is_newton_by_secants():
    recurrence = elman(N)
    frozen, newton = (evaluated(method, recurrence) for method in (FrozenActivations(), Newton()))
    assert newton.iterations <= frozen.iterations
    check_close(frozen.states, newton.states)


def test_errors():
    with pytest.raises(TypeError, match="solver: Sweep is a class"):
        FrozenActivations(solver=pb.Sweep)
    with pytest.raises(ValueError, match="max_passes: got 0"):
        FrozenActivations(max_passes=0)
