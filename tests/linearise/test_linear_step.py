"""Linear functions of which what they know is made ahead of a loop."""

import functools
import math
import re

import jax
import jax.numpy as jnp

import parscan_bp as pb
from parscan_bp.linearise.linear_step import LinearStep

A, W = jnp.linspace(0.5, 1.5, 4), jnp.linspace(-1.0, 1.0, 16).reshape(4, 4)


def test_what_is_left_for_the_loop_is_the_same_function():
    def step(shared, known, vector):
        u, v = vector
        return [W @ (known * u), v], (known * u + v, jnp.zeros_like(u), 2 * u), []

    vector = [jnp.ones(4), jnp.arange(4.0)]
    made = LinearStep.of(jax.jit(step).trace((), A, vector), (), A, vector)
    operator = made.operator(made.known.of_each((), A[None]), all_aux=True)
    out, aux = operator.matvec_and_aux([v[None] for v in vector])
    got = jax.tree.map(lambda a: a[0], (out, aux.all()))
    want = step((), A, vector)[:2]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)


def _stored_by_loops(cell):
    """Numbers that a gradient's loops store in a step, as a multiple of the carry's.

    Stores of one type are one function of the program, and count once.
    """
    hidden, length = 5, 7
    params = cell.init(jax.random.key(0), 3, hidden)
    carry, xs = cell.initial_carry((), hidden), jnp.ones((length, 3))

    def loss(params):
        step = functools.partial(cell, params)
        return pb.scan(step, carry, xs, solver=pb.Sweep(chunk=length))[1].sum()

    text = jax.jit(jax.grad(loss)).lower(params).as_text()
    stored = re.findall(rf"dynamic_update_slice.*-> tensor<{length}x([0-9x]+)x[a-z]+", text)
    numbers = sum(math.prod(map(int, shape.split("x"))) for shape in stored)
    return numbers / sum(c.size for c in jax.tree.leaves(carry))


def test_the_loop_back_of_a_gru_stores_nothing_but_its_vectors():
    """The cotangents of its four pre-activations are more than twice as many numbers."""
    assert _stored_by_loops(pb.cells.GRU()) == 1


def test_the_loop_back_of_an_lstm_stores_those_of_its_pre_activations():
    assert _stored_by_loops(pb.cells.LSTM()) >= 1 + 4 / 2


def test_explain_prints_the_loop():
    """A sweep of an Elman step multiplies a vector by slopes and one matrix, made ahead of it."""
    step = lambda h, x: (jnp.tanh(h @ W + x), h)  # noqa: E731
    found = pb.explain(step, jnp.zeros((2, 4)), jnp.ones((9, 2, 4)), solver=pb.Sweep()).linear_step
    loop = [eqn.primitive.name for eqn in found.apply.eqns]
    assert loop.count("row_product") == 1 and "tanh" not in loop
    ahead, _, within = str(found).partition("in it:")
    assert "transpose" in ahead and "row_product" in within
    assert (
        pb.explain(step, jnp.zeros(4), jnp.ones((9, 4)), solver=pb.Blelloch()).linear_step is None
    )
