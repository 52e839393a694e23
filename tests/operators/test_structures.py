"""What belongs to one structure: its constructors, its cost, its errors."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from operator_examples import DTYPES, EXAMPLES, LENGTH, Draw, assert_close
from operator_references import REFERENCES, reference, wide

from parscan_bp import operators
from parscan_bp.operators import (
    BlockDiagonal,
    Convolution,
    Cost,
    Dense,
    Diagonal,
    Factored,
    Identity,
    MatrixFree,
    Operator,
    Product,
    Scaled,
    compose,
)
from tests.family import array


def test_cost_adds():
    assert Cost(1, 2) + Cost(10, 20) == Cost(11, 22)


def test_the_table_of_examples_is_complete():
    """Every structure that the package exports has a row, and a reference."""
    public = [getattr(operators, name) for name in operators.__all__]
    kinds = {c for c in public if isinstance(c, type) and issubclass(c, Operator)}
    kinds = {c for c in kinds if not inspect.isabstract(c)}
    assert kinds == set(REFERENCES)
    assert kinds == {type(example.make(Draw(0, "float32"), ())) for example in EXAMPLES}


def test_operator_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Operator()


def zeros(*shape):
    return np.zeros(shape, np.float32)


def test_flops_of_one_matvec():
    assert Dense(zeros(7, 3, 4)).cost() == Cost(7 * 24, 4 * 7 * (12 + 7))
    assert Diagonal(zeros(7, 4)).cost() == Cost(7 * 4, 4 * 7 * (4 + 8))
    assert BlockDiagonal(zeros(3, 2, 2)).cost() == Cost(24, 4 * (12 + 12))
    elman = Factored.from_diagonal(zeros(4, 4), zeros(7, 4))
    assert elman.cost() == Cost(7 * (32 + 4), 4 * (16 + 7 * 4 + 7 * 8))
    assert elman.transpose().cost() == elman.cost()
    # A factor that all maps share is read once and applied by each of them.
    product = Product((Dense(zeros(4, 4)), Diagonal(zeros(7, 4))))
    assert product.cost() == Cost(7 * (32 + 4), 4 * (16 + 7 * 8 + 7 * 4 + 7 * 8))


def test_bfloat16_accumulates_in_float32():
    size = 1000  # a sum of ones in bfloat16 stops at 256
    ones = lambda *shape: array(np.ones(shape), jnp.bfloat16)  # noqa: E731
    ops = (
        Dense(ones(2, size)),
        BlockDiagonal(ones(1, size, size)),
        Factored.from_diagonal(ones(size, size), ones(size)),
    )

    @jax.jit
    def run(ops, column, row, block, v):
        return [op.matvec(v) for op in ops], [compose(column, row), compose(block, row)]

    column, row, block = (
        Dense(ones(size, 1)),
        Dense(ones(1, size)),
        BlockDiagonal(ones(1, size, size)),
    )
    vectors, matrices = run(ops, column, row, block, ones(size))
    for got in (*vectors, *(op.matrix for op in matrices)):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(got, np.full(got.shape, size, jnp.bfloat16))


@pytest.mark.parametrize(
    "op",
    [
        Dense(np.ones((3, 4, 4), np.float32)),
        BlockDiagonal(np.ones((2, 2, 2), np.float32)),
        Factored(*(np.ones(shape, np.float32) for shape in ((2, 4), (2, 2, 2), (2, 2, 2)))),
        Product((Dense(np.ones((4, 4), np.float32)), Diagonal(np.ones(4, np.float32)))),
    ],
    ids=lambda op: type(op).__name__,
)
def test_products_name_the_highest_precision(op):
    def programs(op, v):
        return op.matvec(v), op.transpose().matvec(v), compose(op, op), compose(op, wide_blocks)

    wide_blocks = BlockDiagonal(jnp.ones((1, 4, 4)))
    text = str(jax.make_jaxpr(programs)(op, jnp.ones(4)))
    assert text.count("dot_general[") == text.count("HIGHEST, Precision.HIGHEST") >= 4


def test_a_diagonal_with_infinite_entries_has_no_nan_in_its_matrix():
    ops = Diagonal(array([np.inf, 1.0])), BlockDiagonal(array([[[np.inf]], [[1.0]]]))
    for dense in jax.jit(lambda ops: [op.as_dense() for op in ops])(ops):
        assert dense.tolist() == [[np.inf, 0.0], [0.0, 1.0]]


def test_elman_is_one_matrix_product():
    """No einsum over groups of one: scale, then multiply (or the other way round)."""
    op = Factored.from_diagonal(zeros(4, 4), zeros(LENGTH, 4))
    jaxpr = jax.make_jaxpr(lambda op, v: op.matvec(v))(op, zeros(LENGTH, 4))
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert names.count("dot_general") == names.count("mul") == 1
    assert "reduce_sum" not in names


as_dense = jax.jit(lambda op: op.as_dense())


def gru_step(params, h, x):
    """The GRU of BPPSA's appendix E."""
    weights, inputs = params
    (hr, hz, hn), (xr, xz, xn) = (weights @ h).reshape(3, -1), (inputs @ x).reshape(3, -1)
    r, z = jax.nn.sigmoid(hr + xr), jax.nn.sigmoid(hz + xz)
    n = jnp.tanh(xn + r * hn)
    return (1 - z) * n + z * h, (r, z, n, hn)


def test_gru_of_appendix_e():
    draw = Draw(0, "float32")
    params, h, x = (draw(12, 4), draw(12, 3)), draw(4), draw(3)
    jacobian, values = jax.jit(jax.jacrev(gru_step, argnums=1, has_aux=True))(params, h, x)
    weights, h, r, z, n, m = map(np.asarray, (params[0], h, *values))
    tanh = (1 - n * n) * (1 - z)
    gates = np.stack([tanh * m * r * (1 - r), (h - n) * z * (1 - z), tanh * r])
    op = Factored(weights.T, gates[:, None, :], z[None, None, :])
    assert_close(as_dense(op), wide(jacobian).T, "float32", terms=12)


def lstm_step(weights, h, c):
    i, f, g, o = (weights @ h).reshape(4, -1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    return jnp.concatenate([o * jnp.tanh(c), c]), (i, f, g, o, c)


def test_lstm():
    draw = Draw(0, "float32")
    weights, h, c = draw(12, 3), draw(3), draw(3)

    def step(state):
        return lstm_step(weights, state[:3], state[3:])

    h, c = np.asarray(h), np.asarray(c)
    jacobian, values = jax.jit(jax.jacrev(step, has_aux=True))(np.concatenate([h, c]))
    i, f, g, o, new = map(np.asarray, values)
    reach = o * (1 - np.tanh(new) ** 2)  # of the new h by the new c
    by_c = np.stack([g * i * (1 - i), c * f * (1 - f), i * (1 - g * g), zeros(3)])
    by_h = reach * by_c
    by_h[3] = np.tanh(new) * o * (1 - o)
    direct = zeros(2, 2, 3)
    direct[1] = reach * f, f
    op = Factored(np.asarray(weights).T, np.stack([by_h, by_c], axis=1), direct)
    assert_close(as_dense(op), wide(jacobian).T, "float32", terms=12)


def test_jax_linearize_stacked_by_vmap():
    draw = Draw(0, "float32")
    weights, xs = draw(4, 4), draw(LENGTH, 4)
    step = lambda x: jnp.tanh(weights @ x)  # noqa: E731

    @jax.jit
    def run(xs):
        linear = jax.vmap(lambda x: jax.linearize(step, x)[1])(xs)
        op = MatrixFree(linear, True, xs[0])
        assert op.stack_shape == (LENGTH,)
        dense = op.as_dense(), op.transpose().as_dense(), op.transpose().take(2).as_dense()
        return *dense, jax.vmap(jax.jacrev(step))(xs)

    dense, back, one, want = map(wide, run(xs))
    assert_close(dense, want, "float32", terms=4)
    assert_close(back, np.swapaxes(want, -1, -2), "float32", terms=4)
    assert_close(one, want[2].T, "float32", terms=4)


def test_matrix_free_on_pytrees():
    def step(state):
        return {"h": jnp.sin(state["h"]) * state["c"][:, None], "c": state["c"] ** 2}

    draw = Draw(0, "float32")
    states = {"h": draw(LENGTH, 3, 2), "c": draw(LENGTH, 3)}
    v = {"h": draw(LENGTH, 3, 2), "c": draw(LENGTH, 3)}

    @jax.jit
    def run(states, v):
        linear = jax.vmap(lambda state: jax.linearize(step, state)[1])(states)
        op = MatrixFree(linear, True, jax.tree.map(lambda a: a[0], states))
        want = jax.jvp(jax.vmap(step), (states,), (v,))[1], *jax.vjp(jax.vmap(step), states)[1](v)
        return op, (op.matvec(v), op.transpose().matvec(v)), want

    op, made, want = run(states, v)
    assert op.shape == (9, 9)
    for got, wanted in zip(made, want, strict=True):
        for name in ("h", "c"):
            assert_close(got[name], wide(wanted[name]), "float32", terms=3)
    more = jax.tree.map(lambda a: np.stack([a, a]), v)
    assert jax.eval_shape(op.matvec, more)["h"].shape == (2, LENGTH, 3, 2)
    with pytest.raises(ValueError, match="v: got a pytree"):
        op.matvec(v["h"])
    with pytest.raises(ValueError, match="different leading axes"):
        op.matvec({"h": v["h"], "c": v["c"][0]})
    with pytest.raises(TypeError, match="as_dense: this MatrixFree acts on pytrees"):
        op.as_dense()


def test_matrix_free_without_residuals():
    op = MatrixFree(Partial(jnp.flip), True, jnp.zeros(3))
    assert op.length is None
    assert op.transpose().matvec(jnp.arange(6.0).reshape(2, 3)).tolist() == [[2, 1, 0], [5, 4, 3]]


def test_matrix_free_errors():
    with pytest.raises(TypeError, match=r"linear: got function; a jax.tree_util.Partial"):
        MatrixFree(lambda v: v, False, jnp.zeros(3))
    with pytest.raises(TypeError, match="domain: got None"):
        MatrixFree(Partial(jnp.flip))
    with pytest.raises(ValueError, match="stacked: got 1 bools; linear has 0 leaves"):
        MatrixFree(Partial(jnp.flip), (True,), jnp.zeros(3))
    with pytest.raises(ValueError, match=r"dtype int32; .* float"):
        MatrixFree(Partial(jnp.flip), False, jnp.zeros(3)).matvec(jnp.zeros(3, jnp.int32))


def test_identity_is_symbolic():
    op = Identity(3)
    v = jnp.ones((7, 3))
    assert op.matvec(v) is v
    assert (op.nbytes, op.length, jax.tree.leaves(op)) == (0, None, [])
    assert op == Identity(3, jnp.float32) != Identity(3, jnp.bfloat16)
    assert Identity(2, jnp.bfloat16).as_dense().dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_follow_the_operands(dtype):
    for vector in DTYPES:
        v = Draw(0, vector)(3)
        op = Dense(Draw(0, dtype)(2, 3))
        assert jax.eval_shape(op.matvec, v).dtype == jnp.result_type(jnp.dtype(dtype), v)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dense(jnp.ones(3)), r"Dense: matrix has shape \(3,\); at least 2 axes"),
        (lambda: Diagonal(jnp.ones(())).shape, "Diagonal: a leaf is a scalar"),
        (lambda: BlockDiagonal(jnp.ones((2, 2))), "BlockDiagonal: blocks has shape"),
        (lambda: BlockDiagonal(jnp.ones((2, 2, 3))).shape, "blocks: got .* square blocks"),
        (lambda: Factored(jnp.ones((2, 2)), jnp.ones(2)), "Factored: gates has shape"),
        (
            lambda: Factored(jnp.ones((2, 2)), jnp.ones((2, 1, 2))).shape,
            r"weight: got shape \(2, 2\); .* to end in \(2, 4\)",
        ),
        (
            lambda: Factored(jnp.ones((2, 2)), jnp.ones((1, 1, 2)), jnp.ones((2, 2, 2))).shape,
            r"direct: got shape \(2, 2, 2\); .* to end in \(1, 1, 2\)",
        ),
        (
            lambda: Factored(jnp.ones((3, 2, 2)), jnp.ones((4, 1, 1, 2))).stack_shape,
            r"stack axes \[\(3,\), \(4,\)\] do not broadcast",
        ),
        (lambda: Identity(-1), "size: got -1"),
        (lambda: Product(()), "factors: got none"),
        (
            lambda: Product((Dense(jnp.ones((2, 3))), Diagonal(jnp.ones(2)))).shape,
            r"factors\[1\]: got \(2, 2\), applied before factors\[0\] of \(2, 3\)",
        ),
    ],
)
def test_sizes_that_do_not_fit(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dense([[1.0, 2.0]]).shape, "Dense: a leaf is a list; an array"),
        (lambda: Identity(2.0), "size: got 2.0; an int"),
        (lambda: Identity(True), "size: got True; an int"),
        (lambda: Product((jnp.ones((2, 2)),)).shape, r"factors\[0\]: got .*; an Operator"),
        (lambda: Scaled(Identity(2), jnp.zeros((), jnp.int32)), "mantissa: got Identity"),
        (lambda: Scaled.of(Identity(2)), "op: got Identity"),
        (lambda: Scaled(jnp.ones(2), jnp.zeros((), jnp.int32)).shape, "mantissa: got"),
    ],
)
def test_arguments_of_the_wrong_type(build, message):
    with pytest.raises(TypeError, match=message):
        build()


def test_a_product_inside_a_product():
    draw = Draw(0, "float32")
    inner = Product([Dense(draw(3, 4)), Diagonal(draw(LENGTH, 4))])
    op = Product((Diagonal(draw(3)), inner))
    assert op.shape == (3, 4)
    whole, one = jax.jit(lambda op: (op.as_dense(), op.take(2).as_dense()))(op)
    assert_close(whole, reference(op), "float32", terms=4)
    assert_close(one, reference(op)[2], "float32", terms=4)


def test_a_matrix_free_map_may_show_more_than_its_product():
    weights = np.arange(6.0, dtype=np.float32).reshape(3, 2)

    def linear(d, v):
        scaled = d * v
        return weights @ scaled, {"scaled": scaled}

    stack, v = np.float32([[1, 2], [3, 4]]), np.float32([1, -1])
    op = MatrixFree(Partial(linear, stack), True, zeros(2), has_aux=True)
    assert op.shape == (3, 2)
    (out, aux), alone, back = jax.jit(
        lambda op, v, w: (op.matvec_and_aux(v), op.matvec(v), op.transpose().matvec(w))
    )(op, v, np.ones(3, np.float32))
    want = (stack * v) @ weights.T
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(alone, want)
    np.testing.assert_array_equal(aux["scaled"], stack * v)
    np.testing.assert_array_equal(back, stack * weights.sum(0))
    assert jax.eval_shape(op.transpose().matvec_and_aux, zeros(3))[1] is None


def test_other_maps_show_nothing_beside_their_product():
    out, aux = Diagonal(jnp.array([2.0, 3.0])).matvec_and_aux(jnp.ones(2))
    assert out.tolist() == [2.0, 3.0]
    assert aux is None


def test_a_stack_of_kernels_on_more_vectors_than_it_has_axes_for():
    kernels = array(np.arange(9.0).reshape(3, 1, 3, 1, 1))
    op = Convolution(kernels, spatial=(4,), padding=((1, 1),))
    v = array(np.cos(np.arange(24.0)).reshape(3, 2, 4))
    got, dense = jax.jit(lambda op, v: (op.matvec(v), op.as_dense()))(op, v)
    want = np.einsum("...ij,...j->...i", wide(dense), wide(v))
    np.testing.assert_allclose(got, want, rtol=1e-5)
