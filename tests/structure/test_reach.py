"""What a derivative reaches over all steps of a loop."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from parscan_bp.structure.reach import Reach


def _step(w, v, a, b, c, d, n, x):
    """c waits for b, which waits for a; d is by itself; n counts."""
    a = jnp.tanh(w * a + x)
    y = lax.stop_gradient(v) * jnp.cos(b)
    z = jnp.where(d > 0, x, 2.0)
    return a, b + a, c + b * v, 0.5 * d, n + 1, y, z


REACH = Reach.of(jax.make_jaxpr(_step)(*[1.0] * 6, 0, 1.0), 2, 5)


@pytest.mark.parametrize(
    "consts, carry, x, moved",
    [
        ((0,), (), (), ((0, 1, 2), (0,))),
        ((1,), (), (), ((2,), ())),
        ((), (1,), (), ((1, 2), (0,))),
        ((), (3,), (), ((3,), ())),
        ((), (), (0,), ((0, 1, 2), (0, 1))),
        ((), (4,), (), ((4,), ())),
        ((), (), (), ((), ())),
    ],
)
def test_what_moves(consts, carry, x, moved):
    assert REACH.forward(consts, carry, x) == moved


@pytest.mark.parametrize(
    "carry, y, read",
    [
        ((0,), (), ((0,), (0,), (0,))),
        ((2,), (), ((0, 1), (0, 1, 2), (0,))),
        ((), (0,), ((0,), (0, 1), (0,))),
        ((), (1,), ((), (), (0,))),
        ((3,), (), ((), (3,), ())),
        ((), (), ((), (), ())),
    ],
)
def test_what_is_read(carry, y, read):
    assert REACH.backward(carry, y) == read


def test_components_in_an_order_of_substitution():
    assert REACH.components((0, 1, 2, 3)) == [(0,), (3,), (1,), (2,)]
    assert REACH.components((1, 3)) == [(1,), (3,)]
    cycle = jax.make_jaxpr(lambda a, b, c: (b, a + 1.0, c * a))(1.0, 1.0, 1.0)
    assert Reach.of(cycle, 0, 3).components((0, 1, 2)) == [(0, 1), (2,)]
