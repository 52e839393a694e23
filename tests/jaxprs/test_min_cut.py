"""What of a step is kept, and what is made again from it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from parscan_bp.jaxprs.min_cut import Cut

H = 64
W, X = jnp.linspace(-1.0, 1.0, H * H).reshape(H, H) / H, jnp.linspace(0.0, 1.0, H)


def _kept(f, *args):
    """Shapes of what is kept, the results made from it having been compared."""
    cut = Cut.of(jax.make_jaxpr(f)(*args), 1)
    kept = cut.make(args)
    for got, want in zip(cut.finish(args, kept), jax.tree.leaves(f(*args)), strict=True):
        assert jnp.allclose(got, want, atol=1e-6)
    return [v.shape for v in kept]


def _slopes(y):
    return 1 - y * y, y * (1 - y), 2 * y


def test_a_gate_is_kept_rather_than_its_slopes():
    assert _kept(lambda w, x: _slopes(jnp.tanh(x @ w)), W, X) == [(H,)]


def test_calls_are_looked_into():
    assert _kept(jax.jit(lambda w, x: _slopes(jax.jit(jnp.tanh)(x @ w))), W, X) == [(H,)]


def test_of_gates_side_by_side_only_those_that_are_read_are_kept():
    def f(w, x):
        i, f, _, o = jnp.split(jax.nn.sigmoid(jnp.tile(x @ w, 4)), 4)
        return i * f, i * (1 - f), o * i, o * f, o * o

    assert _kept(f, W, X) == [(H,)] * 3


def _three_gates(w, x):
    a, b, c = jnp.cos(x @ w), jnp.sin(x @ w), jnp.tanh(x @ w)
    return a * b, b * c, a * c, a * b * c, a * a


def test_results_are_kept_where_there_are_hardly_more():
    assert _kept(_three_gates, W, X) == [(H,)] * 3
    assert _kept(lambda w, x: (*_three_gates(w, x)[:2], jnp.sin(x @ w)), W, X) == [(H,)] * 3


def test_what_one_operation_makes_is_kept_in_its_order():
    """And not in an order that changes from process to process, as programs would with it."""

    def f(w, x):
        lu, _, order = lax.linalg.lu(w * x)
        return lu * 2, lu * 3, lu + 1, order + 1, order * 2, order * 3

    assert [_kept(f, W, X) for _ in range(10)] == [[(H, H), (H,)]] * 10


@pytest.mark.parametrize("rows", [8, 0])
def test_values_of_as_many_bytes_are_not_exchanged_for_ever(rows):
    """A result from which a slow one follows, and what is empty, might be kept in two ways."""

    def f(w, x):
        a = 2 * jnp.exp(x @ w)
        return a, jnp.tanh(a)

    assert _kept(f, W, jnp.ones((rows, H))) == [(rows, H)] * 2


def test_gates_are_kept_themselves_and_not_what_is_in_front_of_them():
    def f(w, x):
        a, b = jnp.tanh(x @ w), jnp.tanh(x @ w.T)
        return a * b, a * (1 - b * b), b * (1 - a * a)

    cut = Cut.of(jax.make_jaxpr(f)(W[:20, :20], X[:20]), 1)
    assert [v.aval.shape for v in cut.kept] == [(20,), (20,)]
    functions = {e.primitive.name for e in cut.closed.jaxpr.eqns if set(e.outvars) & set(cut.kept)}
    assert functions == {"tanh"}


def test_nothing_is_kept_of_arithmetic_on_the_inputs():
    assert _kept(lambda w, x: (1 - x * x, x * w[0], x), W, X) == []


def test_what_is_the_same_for_every_step_is_not_kept():
    assert _kept(lambda w, x: (jnp.exp(w) @ w + x, x), W, X) == []


@pytest.mark.parametrize(("count", "kept"), [(4, 4), (5, 6)])
def test_where_gates_are_hardly_fewer_a_function_of_few_inputs_is_made_again(count, kept):
    def f(w, x):
        a = x @ w
        i, f, g, o, t = jnp.sin(a), jnp.cos(a), jnp.arctan(a), jnp.expm1(a), jnp.cos(x)
        return i * f, i * (1 - f), g * t, o * t, o * (1 - t * t), f

    assert _kept(f, W[:count, :count], X[:count]) == [(count,)] * kept


def test_a_function_of_few_inputs_is_kept_where_nothing_else_is():
    assert _kept(lambda w, x: jnp.cos(x), W, X[:4]) == [(4,)]
    assert _kept(lambda w, x: _slopes(jnp.sin(x)), W, X[:4]) == [(4,)]


def test_a_product_of_single_numbers_is_arithmetic():
    assert _kept(lambda w, x: _slopes(x @ w), W[:1, :1], X[:1]) == []
    assert _kept(lambda w, x: _slopes(x @ w), W[:2, :1], X[:2]) == [(1,)]
