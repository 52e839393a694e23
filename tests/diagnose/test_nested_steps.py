"""Faults inside of what a step calls, chooses and loops over."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb


def inner_scan(h, x):
    def inner(u, z):
        return jnp.log(u * z), u

    return 0.1 * lax.scan(inner, h + 3.0, jnp.array([9.0, 5.0, 3.0, 3.0]) * x)[0], None


def inner_scan_reversed(h, x):
    def inner(u, z):
        return jnp.sqrt(u * z) + 1.0, u

    return lax.scan(inner, h, jnp.array([1.0, 0.0, 1.0, 1.0]), reverse=True)[0], None


def inner_scan_from_nothing(h, x):
    """Its carry has neither a tangent at first nor a cotangent at last."""

    def inner(carry, z):
        total, count = carry
        return (total + z * h, count + 1), jnp.sqrt(jnp.sum(h * z)) * count

    return h - lax.scan(inner, (jnp.zeros(2), 0), jnp.array([1.0, 1.0, 0.0]) + x)[1][2] / 9, None


def while_loop(h, x):
    def body(state):
        n, u = state
        return n + 1, u / (x - n)

    return lax.while_loop(lambda state: state[0] < 5, body, (0, h))[1], None


def branches(h, x):
    taken = lambda h: lax.switch(1, [jnp.sin, lambda h: jnp.log(h * 0)], h)  # noqa: E731
    return lax.cond(x > 0, lambda h: h / 2, taken, h), None


@jax.checkpoint
def checkpointed(h, x):
    return jax.jit(lambda h: jnp.arctan2(h * x, h * x))(h) + h, None


@jax.custom_jvp
def slope_of_ones_own(h):
    return h + 1


slope_of_ones_own.defjvps(lambda t, _, h: t / h)


@jax.custom_vjp
def pull_of_ones_own(h):
    return jnp.exp(h)


pull_of_ones_own.defvjp(lambda h: (h, h), lambda h, ct: (ct / (h - 2),))

X = jnp.array([2.0, 1.0, 0.25, 1.0])
CASES = {
    # name: step, init, xs, and quantities, each with step, primitive, steps of loops inside
    "scan": (inner_scan, jnp.ones(2), X.at[2].set(0.1), ("carry", 2, "log", (2,))),
    "scan, reversed": (
        *(inner_scan_reversed, jnp.ones(2), X),
        *(("cotangent", 3, "sqrt", (1,)), ("Jacobian", 0, "sqrt", (1,))),
    ),
    "scan, from nothing": (
        *(inner_scan_from_nothing, jnp.ones(2), X.at[2].set(0)),
        *(("cotangent", 2, "sqrt", (2,)), ("Jacobian", 2, "sqrt", (2,))),
    ),
    "while": (while_loop, jnp.ones(2), jnp.array([9.0, 7.0, 3.0, 1.0]), ("carry", 2, "div", (3,))),
    "cond": (branches, jnp.ones(2), X.at[2].set(-1), ("carry", 2, "log", ())),
    "jit and checkpoint": (
        *(checkpointed, jnp.ones(2), X.at[2].set(0)),
        ("cotangent", 2, "atan2", ()),
    ),
    "custom_jvp": (
        *(lambda h, x: (slope_of_ones_own(h * x), None), jnp.ones(2), X.at[2].set(0)),
        ("cotangent", 2, "custom_jvp_call of slope_of_ones_own", ()),
    ),
    "custom_vjp": (
        *(lambda h, x: (pull_of_ones_own(h) * 0 + x, None), jnp.ones(2), X),
        ("cotangent", 1, "custom_vjp_call of pull_of_ones_own", ()),
    ),
    "vmap": (
        *(jax.vmap(branches, (0, None)), jnp.ones((3, 2)), X.at[2].set(-1)),
        ("carry", 2, "log", ()),
    ),
    "a function of JAX": (
        *(lambda h, x: (h * jnp.linalg.norm(h * x), None), jnp.ones(2), X.at[2].set(0)),
        ("Jacobian", 2, "sqrt", ()),
    ),
    "complex": (lambda h, x: (jnp.log(h) * x, None), 1.0 + 0j, X, ("carry", 1, "log", ())),
}


@pytest.mark.parametrize("name", CASES)
def test_the_operation_inside_is_named(name):
    step, init, xs, *faults = CASES[name]
    found = pb.diagnose(step, init, xs)
    for quantity, at, primitive, inner in faults:
        fault = next(f for f in found.faults if f.quantity == quantity)
        assert fault.step == at
        assert (fault.operation.primitive, fault.operation.inner) == (primitive, inner)
        assert fault.operation.file == __file__


def test_what_has_no_such_derivative_is_said():
    no_reverse = pb.diagnose(while_loop, jnp.ones(2), jnp.full(3, 9.0))
    assert no_reverse.remarks[0].startswith("cotangents were not looked at: Reverse-mode")
    assert no_reverse.exponent is not None and no_reverse.memory is None
    assert str(no_reverse).startswith("3 steps: all finite: values, Jacobians\n")
    step = lambda h, x: (pull_of_ones_own(h), None)  # noqa: E731
    no_forward = pb.diagnose(step, jnp.full(2, -1.0), length=2)
    assert no_forward.remarks[0].startswith("Jacobians were not looked at: can't apply")
    assert no_forward.exponent is None and no_forward.memory is not None
