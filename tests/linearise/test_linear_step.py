"""Linear functions of which what they know is made ahead of a loop."""

import functools
import math
import re

import jax
import jax.numpy as jnp

import parscan_bp as pb
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.linearise.passes.arithmetic_inside import arithmetic_inside

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


def test_a_loop_that_is_one_function_reads_what_is_kept_and_makes_the_rest():
    """The same map; of a GRU it reads five values of a step in place of nine."""
    cell = pb.cells.GRU()
    params, (carry, x) = (
        cell.init(jax.random.key(0), 3, 4),
        (jnp.full((2, 4), 0.5), jnp.ones((2, 3))),
    )

    def pulled(shared, own, v):
        pull = jax.vjp(lambda c: cell(shared, c, own[1])[0], own[0])[1]
        return list(pull(*v)), None, []

    own, vector = (carry, x), [jnp.linspace(-1.0, 1.0, 8).reshape(2, 4)]
    made = LinearStep.of(jax.jit(pulled).trace(params, own, vector), params, own, vector)
    inside = arithmetic_inside(made)
    stacked = jax.tree.map(lambda a: a[None], own)
    for step in (made, inside):
        operator = step.operator(step.known.of_each(params, stacked))
        (got,) = operator.matvec([v[None] for v in vector])
        assert jnp.allclose(got[0], pulled(params, own, vector)[0][0], rtol=1e-5, atol=1e-6)
    assert [sum(step.known.varies) for step in (made, inside)] == [9, 5]
    assert inside.known.nbytes < made.known.nbytes
    assert inside.is_stored and len(inside.apply.eqns) > len(made.apply.eqns)
