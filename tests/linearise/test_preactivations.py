"""What the sweep hands to the pullback: cotangents where parameters and inputs meet the carry."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.linearise.body import Active, Body
from parscan_bp.linearise.linear_step import Distinct
from parscan_bp.linearise.preactivations import Preactivations
from tests.family import jit_once

H, B, T = 5, 3, 24
DTYPE = jnp.zeros(()).dtype
TOLERANCE = 1e-10 if DTYPE == jnp.float64 else 2e-5


def _params():
    w, u, b = jax.random.split(jax.random.key(0), 3)
    return {
        "w": jax.random.normal(w, (H, H), DTYPE) / 3,
        "u": jax.random.normal(u, (H, H), DTYPE) / 3,
        "b": jax.random.normal(b, (H,), DTYPE),
    }


def oscillator(p, h, x):
    return h + 0.1 * jnp.sin(h @ p["w"] + p["b"] + x @ p["u"])


def replaced_by_the_input(p, h, x):
    """One leaf of the new carry does not depend on the carry."""
    a, b = h
    return jnp.tanh(a @ p["w"] + b), x @ p["u"] + p["b"]


def remembers_the_input(p, h, x):
    """A leaf of the new carry is the input itself, which acts at once, too."""
    a, b = h
    return jnp.tanh(a @ p["w"] + b * x), x


def many(p, h, x):
    """More meeting places than a loop stores cotangents of."""
    for _ in range(4):
        h = jnp.sin(h * p["b"] + x) + h
    return h


def detached(p, h, x):
    """A parameter that acts, but through nothing that is differentiated."""
    scale = lax.stop_gradient(jnp.tanh(h) * p["b"])
    return jnp.tanh(h @ p["w"] + x) * scale


def nested(p, h, x):
    """Meeting places inside a jitted function and inside a branch."""
    h = jax.jit(lambda h: jnp.tanh(h @ p["w"] + p["b"]))(h)
    return lax.cond(x.sum() > 0, lambda: h * p["b"], lambda: h - x @ p["u"])


def counted(p, carry, x):
    n, h = carry
    return n + 1, jnp.where(n % 2 == 0, jnp.cos(h @ p["w"]), h * p["b"]) + x


def twice_the_same(p, h, x):
    a, b = h
    new = jnp.tanh(a @ p["w"] + b * p["b"] + x)
    return new, new


def in_a_row(p, h, x):
    """Meeting places that read one another, with a parameter first and an input then."""
    return jnp.sin(h * p["b"] * x)


def rotation(p, z, x):
    return z * jnp.exp(1j * p["b"]) + x


STEPS = {
    oscillator: jnp.ones((B, H), DTYPE),
    replaced_by_the_input: (jnp.ones((B, H), DTYPE), jnp.zeros((B, H), DTYPE)),
    remembers_the_input: (jnp.ones((B, H), DTYPE), jnp.zeros((B, H), DTYPE)),
    many: jnp.ones((B, H), DTYPE),
    detached: jnp.ones((B, H), DTYPE),
    nested: jnp.ones((B, H), DTYPE),
    counted: (0, jnp.ones((B, H), DTYPE)),
    twice_the_same: (jnp.ones((B, H), DTYPE), jnp.zeros((B, H), DTYPE)),
    in_a_row: jnp.ones((B, H), DTYPE),
    rotation: jnp.ones((B, H), jnp.result_type(DTYPE, jnp.complex64)),
}


def _loss(step, with_output):
    """``scan -> loss(params, xs)``."""

    def body(p, c, x):
        new = step(p, c, x)
        y = jax.tree.leaves(new)[-1]
        return new, (y * p["b"] if with_output else y)

    def of(scan):
        def loss(params, xs):
            last, ys = scan(lambda c, x: body(params, c, x), STEPS[step], xs)
            floats = [a for a in jax.tree.leaves((last, ys)) if jnp.issubdtype(a, jnp.inexact)]
            return sum((jnp.abs(a) ** 2).sum() for a in floats)

        return loss

    return of


def _compare(derivative):
    """``derivative(scan)(params, xs)`` by the sweep and by `lax.scan`."""
    at = _params(), jax.random.normal(jax.random.key(1), (T, B, H), DTYPE)
    sweep = functools.partial(pb.scan, solver=pb.Sweep(chunk=7))
    got, want = (jit_once(derivative(scan))(*at) for scan in (sweep, lax.scan))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.abs(a - b).max() <= TOLERANCE * max(1.0, np.abs(b).max())


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("wrt", "with_output"), [("params", False), ("xs", False), ("both", False), ("both", True)]
)
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_gradients_are_those_of_lax_scan(step, with_output, wrt):
    argnums = {"params": (0,), "xs": (1,), "both": (0, 1)}[wrt]
    _compare(lambda scan: jax.grad(_loss(step, with_output)(scan), argnums))


@pytest.mark.sampled(of=(oscillator, nested, rotation))
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_hessian_vector_products_are_those_of_lax_scan(step):
    def hvp(scan):
        gradient = jax.grad(_loss(step, False)(scan), (0, 1))
        return lambda *at: jax.jvp(gradient, at, jax.tree.map(jnp.cos, at))[1]

    _compare(hvp)


def _preactivations(step, active):
    p, carry = _params(), STEPS[step]
    shapes = jax.eval_shape(lambda: (p, carry, jnp.zeros((B, H), DTYPE)))
    closed = jax.make_jaxpr(step)(*shapes)
    preactivations = Preactivations(Body(closed, len(p), len(jax.tree.leaves(carry))), active)
    consts, carry, x = map(jax.tree.leaves, shapes)
    return jax.eval_shape(preactivations.values, consts, carry, x)


def test_preactivations_are_where_parameters_or_inputs_meet_the_carry():
    # consts in the order b, u, w
    assert len(_preactivations(oscillator, Active((0, 1, 2), (0,), ()))) == 3  # h @ w, + b, + x @ u
    assert len(_preactivations(oscillator, Active((2,), (), ()))) == 1
    assert len(_preactivations(oscillator, Active((), (0,), ()))) == 1
    assert _preactivations(oscillator, Active((), (), ())) == []
    assert len(_preactivations(detached, Active((0,), (), ()))) == 0


def test_a_leaf_that_forgets_the_carry_is_a_preactivation_itself():
    preactivations = _preactivations(replaced_by_the_input, Active((1,), (), ()))
    assert [a.shape for a in preactivations] == [(B, H)]


def test_values_that_are_one_object_are_kept_once():
    a, b = jnp.zeros(2), jnp.zeros(2)
    values = Distinct.of([a, b, a])
    assert len(values.kept) == 2
    assert [v is a for v in values.all()] == [True, False, True]


def _optimised(step, carry):
    params = _params()
    xs = jax.random.normal(jax.random.key(1), (T, B, H), DTYPE)

    def loss(params):
        return pb.scan(lambda c, x: (step(params, c, x), None), carry, xs, solver=pb.Sweep(8))[0]

    summed = lambda params: sum(a.sum() for a in jax.tree.leaves(loss(params)))  # noqa: E731
    return jax.jit(jax.grad(summed)).lower(params).compile().as_text()


@pytest.mark.reads_compiled
def test_a_slope_is_evaluated_once():
    # The sine's slope is needed by the sweep; the pullback is given what the sweep made of it.
    text = _optimised(oscillator, STEPS[oscillator])
    assert len(re.findall(r"= \S+ cosine\(", text)) == 1


@pytest.mark.reads_compiled
@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize(("kept", "evaluations"), [(0.0, 1), (0.5, 2)])
def test_what_a_step_returned_is_not_made_again(chunk, kept, evaluations):
    """An Elman step returns its tanh; one that adds to it does not."""
    p, xs = _params(), jnp.ones((T, B, H), DTYPE)

    def step(h, x):
        h = jnp.tanh(h @ p["w"] + x) if not kept else kept * h + jnp.tanh(h @ p["w"] + x)
        return h, h

    def loss(h):
        return jnp.sum(pb.scan(step, h, xs, solver=pb.Sweep(chunk=chunk))[1] ** 2)

    compiled = jax.jit(jax.grad(loss)).lower(jnp.ones((B, H), DTYPE)).compile().as_text()
    made = len(re.findall(r" tanh\(", compiled))
    assert made == evaluations + (chunk is not None and kept > 0)  # a chunk that is left over
