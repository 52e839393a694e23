"""Products of rows with a matrix inside the loop of a sweep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import parscan_bp as pb
from parscan_bp.linearise.passes.row_product import as_row_product
from tests.family import array

# Shape and summed axis of the rows, and of the matrix.
PRODUCTS = {
    "rows": ((5, 6), 1, (6, 3), 0),
    "a row": ((6,), 0, (6, 3), 0),
    "transposed": ((5, 6), 1, (3, 6), 1),
    "more axes": ((2, 5, 6), 2, (6, 3), 0),
    "columns": ((6, 5), 0, (6, 3), 0),
    "many": ((100, 20), 1, (20, 20), 0),
    "long": ((3, 32), 1, (32, 2), 0),
}


def _random(shape, seed):
    return jax.random.normal(jax.random.key(seed), shape)


def _product(rows, matrix, axis=None, of_matrix=0):
    """``lax.dot_general`` and what `as_row_product` makes of it."""
    axis = rows.ndim - 1 if axis is None else axis
    numbers = ((axis,), (of_matrix,)), ((), ())
    dot = functools.partial(lax.dot_general, dimension_numbers=numbers)
    (eqn,) = jax.make_jaxpr(dot)(rows, matrix).jaxpr.eqns
    found = as_row_product(eqn)
    return dot, functools.partial(found.primitive.bind, **found.params)


def _calls(function, *args) -> int:
    """Products of matrices in the optimised program."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return text.count(" dot(") + text.count(" custom-call(")


@pytest.mark.parametrize("name", PRODUCTS)
def test_values_and_derivatives_are_those_of_the_product(name):
    of_rows, axis, of_matrix, summed = PRODUCTS[name]
    rows, matrix = _random(of_rows, 0), _random(of_matrix, 1)
    dot, product = _product(rows, matrix, axis, summed)
    taken = matrix.T if summed == 1 else matrix
    for run in (product, jax.jit(product)):
        assert jnp.allclose(run(rows, taken), dot(rows, matrix), rtol=1e-5, atol=1e-5)
    check_grads(
        jax.jit(product), (rows, taken), order=2, modes=("fwd", "rev"), rtol=0.02, atol=0.02
    )


def test_every_product_and_its_cotangents_in_one_program():
    def both(cases):
        made = []
        for name, (rows, matrix) in cases.items():
            _, axis, of_matrix, summed = PRODUCTS[name]
            assert matrix.shape == of_matrix
            dot, product = _product(rows, matrix, axis, summed)
            taken = (lambda m: m.T) if summed == 1 else lambda m: m
            ours = lambda r, m, f=product, taken=taken: jnp.sum(jnp.sin(f(r, taken(m))))  # noqa: E731
            plain = lambda r, m, f=dot: jnp.sum(jnp.sin(f(r, m)))  # noqa: E731
            made.append([jax.value_and_grad(f, (0, 1))(rows, matrix) for f in (ours, plain)])
        return made

    rng = np.random.default_rng(0)
    cases = {
        name: [array(rng.normal(size=shape), "float32") for shape in (rows, matrix)]
        for name, (rows, _, matrix, _) in PRODUCTS.items()
    }
    for got, want in jax.jit(both)(cases):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", [(0, None), (1, None), (None, 0), (0, 0), (0, 1)])
def test_under_vmap(axes):
    rows, matrix = _random((4, 4, 4), 0), _random((4, 4, 4), 1)
    given = tuple(v if a is not None else v[0] for v, a in zip((rows, matrix), axes, strict=True))
    dot, product = _product(rows[0], matrix[0])
    got, want = (jax.jit(jax.vmap(f, axes))(*given) for f in (product, dot))
    assert got.shape == want.shape
    assert jnp.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.reads_compiled
@pytest.mark.parametrize(
    ("batch", "count", "dtype", "calls"),
    [
        ((), (5,), jnp.float32, 0),
        ((), (), jnp.float32, 0),
        ((4,), (5,), jnp.float32, 0),
        ((100,), (5,), jnp.float32, 1),
        ((), (500,), jnp.float32, 1),
        ((), (5,), jnp.bfloat16, 1),
    ],
)
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on a CPU only")
def test_small_products_make_no_call(batch, count, dtype, calls):
    rows, matrix = jnp.ones((*count, 6), dtype), jnp.ones((6, 6), dtype)
    _, product = _product(rows, matrix)
    for _ in batch:
        product = jax.vmap(product, (0, None))
    assert _calls(product, jnp.ones((*batch, *rows.shape), dtype), matrix) == calls


def test_a_large_single_row_stays_as_it_is():
    (eqn,) = jax.make_jaxpr(jnp.matmul)(jnp.ones(64), jnp.ones((64, 64))).jaxpr.eqns
    assert as_row_product(eqn) is None


def test_other_equations_stay_as_they_are():
    for function in (jnp.add, jax.vmap(jnp.matmul), lambda u, w: jnp.tensordot(u, w, 2)):
        eqn = jax.make_jaxpr(function)(jnp.ones((3, 3)), jnp.ones((3, 3))).jaxpr.eqns[-1]
        assert as_row_product(eqn) is None, function


@pytest.mark.reads_compiled
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on a CPU only")
@pytest.mark.parametrize(("hidden", "found"), [(6, False), (32, True)])
def test_the_loop_of_a_small_sweep_makes_no_call(hidden, found):
    cell = pb.cells.Elman()
    params = cell.init(jax.random.key(0), hidden, hidden)
    start, xs = cell.initial_carry((16,), hidden), jnp.ones((64, 16, hidden))

    def adjoint(params, ct):
        scan = functools.partial(pb.scan, solver=pb.Sweep(chunk=64))
        run = lambda h: scan(functools.partial(cell, params), h, xs)[0]  # noqa: E731
        return jax.vjp(run, start)[1](ct)

    program = jax.jit(adjoint).lower(params, start).compile()
    text = program.as_text()
    loops = [line for line in text.split("\n") if "transpose" in line and " dot(" in line]
    assert any("while" in line for line in loops) == found
    want = jax.vjp(lambda h: lax.scan(functools.partial(cell, params), h, xs)[0], start)[1](start)
    assert jnp.allclose(program(params, start)[0], want[0], rtol=1e-4, atol=1e-5)
