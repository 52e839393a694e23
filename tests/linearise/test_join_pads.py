"""Sums of disjoint pads against concatenations, number for number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from parscan_bp.linearise.passes.join_pads import joined_pads


def pads(*configs):
    """A sum of pads of one array's columns."""

    def f(x):
        widths = lambda lo, hi: [(0, 0, 0)] * (x.ndim - 1) + [(lo, hi, 0)]  # noqa: E731
        parts = [lax.pad(x * (k + 1), 0.0, widths(*c)) for k, c in enumerate(configs)]
        return functools.reduce(jnp.add, parts)

    return f


def cotangent(x):
    y, pull = jax.vjp(lambda v: sum(jnp.sin(v[:, k : k + 2]) * k for k in (0, 2, 4)), x)
    return pull(y)[0]


CASES = {
    "all": (pads((0, 4), (2, 2), (4, 0)), (3, 2), True),
    "gap": (pads((0, 4), (4, 0)), (3, 2), True),
    "beginning and end": (pads((1, 5), (4, 2)), (3, 2), True),
    "out of order": (pads((4, 0), (0, 4), (2, 2)), (3, 2), True),
    "overlap": (pads((0, 3), (1, 2)), (3, 2), False),
    "one": (pads((0, 4)), (3, 2), False),
    "of ones": (lambda x: lax.pad(x, 1.0, [(0, 2, 0)]) + lax.pad(x, 1.0, [(2, 0, 0)]), (2,), False),
    "inside": (lambda x: lax.pad(x, 0.0, [(0, 1, 1)]) + lax.pad(x, 0.0, [(1, 0, 1)]), (3,), False),
    "cotangent": (cotangent, (3, 6), True),
    "in between": (lambda x: 2 * pads((0, 2), (2, 0))(x) + 1, (2,), True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name):
    f, shape, joins = CASES[name]
    x = jax.random.normal(jax.random.key(0), shape)
    closed = jax.make_jaxpr(f)(x)
    joined = joined_pads(closed)
    (got,) = jax.core.eval_jaxpr(joined.jaxpr, joined.consts, x)
    np.testing.assert_array_equal(got, f(x))
    names = [eqn.primitive.name for eqn in joined.jaxpr.eqns]
    assert ("concatenate" in names) == joins
    assert ("pad" in names) <= (not joins)


def test_what_is_not_finite_stays_where_it_is():
    f = pads((0, 1), (1, 0))
    x = jnp.array([[jnp.inf], [jnp.nan]])
    joined = joined_pads(jax.make_jaxpr(f)(x))
    (got,) = jax.core.eval_jaxpr(joined.jaxpr, joined.consts, x)
    np.testing.assert_array_equal(got, jnp.concatenate([x, 2 * x], -1))
