"""The algebra: what compose computes, into which structure, at what cost."""

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from operator_examples import LENGTH, OTHERS, SQUARE, Draw, Integers, assert_close
from operator_references import reference, transposed

from parscan_bp.operators import (
    Banded,
    BlockDiagonal,
    BlockSparse,
    ChannelDense,
    Cost,
    Dense,
    Diagonal,
    Factored,
    Identity,
    MatrixFree,
    Operator,
    Product,
    Scaled,
    Selection,
    Sparse,
    Structure,
    compose,
    compose_cost,
    compose_shape,
    identity_like,
    join,
    stack,
    structure_of,
    to_scaled,
    to_structure,
)
from tests.family import jit_once, together

NAMES = [example.name for example in SQUARE]
# One of the factored rows stands for all: they are the same to the algebra. Convolutions have
# their own tests.
OTHERS_ALIKE = ("elman", "lstm", "gates-without-direct", "sum", "low-rank", "convolution")
DISTINCT = [name for name in NAMES if name not in OTHERS_ALIKE]
SPARSE = [
    *("sparse", "channel-dense", "selection", "selection-transposed", "banded"),
    "block-sparse",
]
CLOSED = [n for n in DISTINCT if n not in ("gru", "product", "blocks-of-3", *SPARSE)]
SIZE = 6


@functools.cache
def made(name: str, stack: tuple[int, ...], seed: int) -> Operator:
    (example,) = [e for e in SQUARE if e.name == name]
    return example.make(Integers(seed, "float32"), stack)


# Few shapes and values: what costs time here is compiling a program for each new shape.
STACKS = st.sampled_from([(), (2,)])
OPERATORS = st.builds(made, st.sampled_from(DISTINCT), STACKS, st.integers(0, 3))
PATTERNED = [Banded, Selection, ChannelDense, Sparse, BlockSparse]
KINDS = [Identity, Diagonal, Dense, Factored, Product, *PATTERNED]
STRUCTURES = st.one_of(
    st.sampled_from([Structure(kind) for kind in KINDS]),
    st.sampled_from([Structure(Diagonal, 0, True), Structure(Dense, 0, True)]),
    st.builds(
        Structure, st.just(BlockDiagonal), st.sampled_from([1, 2, 3, 4, 6, 12]), st.booleans()
    ),
)
few = hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)


def product(b: Operator, a: Operator) -> np.ndarray:
    return reference(b) @ reference(a)


@few
@hypothesis.given(OPERATORS, OPERATORS)
def test_compose_is_the_product_with_operands_reversed(a, b):
    np.testing.assert_array_equal(reference(compose(a, b)), product(b, a))


@few
@hypothesis.given(OPERATORS, OPERATORS, OPERATORS)
def test_compose_is_associative(a, b, c):
    left, right = compose(compose(a, b), c), compose(a, compose(b, c))
    np.testing.assert_array_equal(reference(left), reference(right))
    # Where a sparse product fills up depends on the order.
    if not any(op.kind in PATTERNED for op in map(structure_of, (a, b, c))):
        assert structure_of(left) == structure_of(right)


@few
@hypothesis.given(OPERATORS, OPERATORS)
def test_structures_are_closed(a, b):
    got, least = structure_of(compose(a, b)), join(a, b)
    assert least == join(structure_of(a), structure_of(b))
    # A sparse product that fills up lies above the join.
    assert got == least or (least.kind in PATTERNED and join(got, least) == got)


@few
@hypothesis.given(OPERATORS, OPERATORS)
def test_transposition_reverses(a, b):
    turned = compose(b.transpose(), a.transpose())
    np.testing.assert_array_equal(reference(turned), transposed(product(b, a)))


@few
@hypothesis.given(OPERATORS)
def test_identity_gives_the_other_operand_itself(a):
    unit = identity_like(a)
    assert (unit.size, unit.dtype) == (SIZE, a.dtype)
    assert compose(unit, a) is a
    assert compose(a, unit) is a or isinstance(a, Identity)
    assert compose_cost(unit, a) == Cost(0, 0)


@hypothesis.given(STRUCTURES, STRUCTURES, STRUCTURES)
def test_join_is_commutative_and_associative(a, b, c):
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))


@pytest.fixture(scope="module")
def all_products():
    """Every pair of structures composed, in one program."""
    draw = Draw(0, "float32")
    by_name = {e.name: e.make(draw, (LENGTH,)) for e in SQUARE if e.name in DISTINCT}
    pairs = list(itertools.product(DISTINCT, DISTINCT))
    compose_all = jit_once(lambda ops: [compose(ops[i], ops[j]) for i, j in pairs])
    return by_name, dict(zip(pairs, compose_all(by_name), strict=True))


@pytest.mark.parametrize("b", DISTINCT)
@pytest.mark.parametrize("a", DISTINCT)
def test_every_pair(all_products, a, b):
    ops, products = all_products
    got, least = products[a, b], join(ops[a], ops[b])
    assert structure_of(got) == least or least.kind in PATTERNED
    assert got.dtype == jnp.float32
    assert_close(reference(got), product(ops[b], ops[a]), "float32", terms=40)


def test_what_is_transposed_has_products_of_its_own():
    """Below the diagonal, by columns, from the other side: of each structure, in one program."""
    ops = {name: (made(name, (2,), 0), made(name, (2,), 1)) for name in DISTINCT}
    square = lambda a, b: compose(b.transpose(), a.transpose())  # noqa: E731
    products = jit_once(lambda ops: {name: square(*pair) for name, pair in ops.items()})(ops)
    for name, (a, b) in ops.items():
        want = transposed(product(b, a))
        np.testing.assert_array_equal(reference(products[name]), want, err_msg=name)


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (Structure(Diagonal), Structure(Diagonal), Structure(Diagonal)),
        (Structure(Diagonal), Structure(BlockDiagonal, 2), Structure(BlockDiagonal, 2)),
        (Structure(BlockDiagonal, 2), Structure(BlockDiagonal, 4), Structure(BlockDiagonal, 4)),
        (Structure(BlockDiagonal, 2), Structure(BlockDiagonal, 3), Structure(BlockDiagonal, 6)),
        (Structure(BlockDiagonal, 2), Structure(Dense), Structure(Dense)),
        (Structure(Factored), Structure(Diagonal), Structure(Dense)),
        (Structure(Product), Structure(Product), Structure(Dense)),
        (Structure(Identity), Structure(Factored), Structure(Factored)),
        (Structure(Dense, 0, True), Structure(Diagonal), Structure(Dense, 0, True)),
        (Structure(Diagonal, 0, True), Structure(Product), Structure(Dense, 0, True)),
        (Structure(Diagonal), Structure(Sparse), Structure(Sparse)),
        (Structure(Selection), Structure(ChannelDense), Structure(ChannelDense)),
        (Structure(Banded), Structure(ChannelDense), Structure(Sparse)),
        (Structure(BlockDiagonal, 2), Structure(Selection), Structure(Sparse)),
        (Structure(Sparse), Structure(Dense), Structure(Dense)),
        (Structure(Sparse), Structure(Diagonal, 0, True), Structure(Dense, 0, True)),
        (Structure(BlockSparse), Structure(BlockSparse), Structure(BlockSparse)),
        (Structure(BlockSparse), Structure(Diagonal), Structure(Dense)),
    ],
)
def test_joins(a, b, want):
    assert join(a, b) == join(b, a) == want


def test_a_diagonal_never_becomes_dense():
    """No array of n^2 numbers appears where a chain is diagonal."""
    n = 1000
    ones = np.ones(n, np.float32)

    def chain(plain, v):
        ops = [plain, Scaled.of(plain), Identity(n), plain]
        return functools.reduce(compose, ops).matvec(v)

    jaxpr = jax.make_jaxpr(chain)(Diagonal(ones), ones)
    sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) == n


@pytest.mark.parametrize("example", [e for e in OTHERS if e.name == "matrix-free"], ids=repr)
def test_matrix_free_operators_have_no_product(example):
    op = example.make(Draw(0, "float32"), (LENGTH,))
    other = Identity(op.shape[1])
    for a, b in ((other, op), (op, Dense(jnp.ones((2, op.shape[0])))), (op, op.transpose())):
        with pytest.raises(TypeError, match=r"MatrixFree has no product with .*sequential solver"):
            compose(a, b)
        with pytest.raises(TypeError, match="MatrixFree has no product"):
            compose_cost(a, b)
    assert_close(reference(to_structure(op, Dense)), reference(op), "float32", terms=4)


@pytest.mark.parametrize("b", SPARSE)
@pytest.mark.parametrize("a", [n for n in DISTINCT if not n.startswith("scaled")])
def test_the_shape_of_a_product_without_its_numbers(all_products, a, b):
    ops, products = all_products
    for first, second in ((a, b), (b, a)):
        got = compose_shape(ops[first], ops[second])
        assert jax.tree.structure(got) == jax.tree.structure(products[first, second])
        want = jax.eval_shape(lambda op: op, products[first, second])
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(got)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(want)
        ]


def test_rectangular_operators():
    draw = Draw(0, "float32")
    a, b = Dense(draw(4, 6)), Dense(draw(LENGTH, 3, 4))
    blocks, diagonal = BlockDiagonal(draw(2, 3, 3)), Diagonal(draw(4))
    for first, second in ((a, b), (blocks, a), (a, diagonal), (a, BlockDiagonal(draw(2, 2, 2)))):
        got = compose(first, second)
        assert got.shape == (second.shape[0], first.shape[1])
        assert_close(reference(got), product(second, first), "float32", terms=6)
    with pytest.raises(ValueError, match=r"b, on the left, is 4x6 and a, on the right, 3x4"):
        compose(b, a)
    with pytest.raises(ValueError, match="op: got 3x4 maps; square ones"):
        identity_like(b)
    with pytest.raises(ValueError, match=r"stacks \(5,\) of a and \(4,\) of b do not broadcast"):
        compose(Dense(draw(LENGTH, 3, 3)), Dense(draw(4, 3, 3)))
    with pytest.raises(TypeError, match=r"b: got .*; an Operator is wanted"):
        compose(a, jnp.ones((3, 4)))


def test_compose_cost():
    n, b, maps = 6, 2, 7
    zeros = functools.partial(np.zeros, dtype=np.float32)
    dense, diagonal = Dense(zeros((maps, n, n))), Diagonal(zeros((maps, n)))
    blocks = BlockDiagonal(zeros((maps, n // b, b, b)))
    threes = BlockDiagonal(zeros((n // 3, 3, 3)))
    square, band = 4 * maps * n * n, 4 * maps * n * b
    cost = {
        (dense, dense): Cost(maps * 2 * n**3, 3 * square),
        (diagonal, diagonal): Cost(maps * n, 3 * 4 * maps * n),
        (blocks, blocks): Cost(maps * 2 * n * b * b, 3 * band),
        (diagonal, dense): Cost(maps * n * n, 4 * maps * n + 2 * square),
        (blocks, diagonal): Cost(maps * n * b, 4 * maps * n + 2 * band),
        (dense, blocks): Cost(maps * 2 * n * n * b, band + 2 * square),
        # 2 and 3 join to one block of 6.
        (blocks, threes): Cost(maps * 2 * n * n * n, band + 4 * n * 3 + square),
    }
    for (first, second), want in cost.items():
        assert compose_cost(first, second) == want
        assert compose_cost(second, first) == want
        abstract = jax.eval_shape(lambda *ops: ops, first, second)
        assert compose_cost(*abstract) == want
    scaled = compose_cost(to_scaled(dense), diagonal)
    assert scaled.flops == maps * (n * n + 4 * n * n)
    gru = made("gru", (2,), 0)
    assert compose_cost(gru, gru).flops == 2 * 2 * SIZE**3


def above(op: Operator, name: str) -> list[Structure]:
    """Structures that hold an operator."""
    found = [Structure(Dense, 0, True)]
    if not isinstance(op, Scaled):
        found.append(Structure(Dense))
    if isinstance(op, (Identity, Diagonal)) or name == "blocks-of-2":
        found += [Structure(BlockDiagonal, 2), Structure(BlockDiagonal, 6, True)]
    if isinstance(op, (Identity, Diagonal)):
        found += [Structure(kind) for kind in PATTERNED if kind is not BlockSparse]
    if isinstance(op, (Selection, ChannelDense, Banded)) or name == "blocks-of-2":
        found.append(Structure(Sparse))
    if isinstance(op, Selection):
        found.append(Structure(ChannelDense))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_to_structure(name, request):
    def case(name):
        targets = above(made(name, (2,), 0), name)
        convert = lambda op: ([to_structure(op, target) for target in targets], to_scaled(op))  # noqa: E731
        return convert, [made(name, (2,), 0)]

    op = made(name, (2,), 0)
    assert to_structure(op, structure_of(op)) is op
    converted, scaled = together(request, case)
    for got, target in zip(converted, above(op, name), strict=True):
        assert structure_of(got) == target
        np.testing.assert_array_equal(reference(got), reference(op))
    assert isinstance(scaled, Scaled)
    np.testing.assert_array_equal(reference(scaled), reference(op))


def test_to_structure_refuses_what_does_not_fit():
    ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
    dense, twos = Dense(ones(6, 6)), BlockDiagonal(ones(3, 2, 2))
    with pytest.raises(ValueError, match="does not hold every Dense"):
        to_structure(dense, Diagonal)
    with pytest.raises(ValueError, match=r"blocks of order 3 do not hold .* blocks of order 2"):
        to_structure(twos, Structure(BlockDiagonal, 3))
    with pytest.raises(ValueError, match="blocks of order 4 do not hold maps of order 6"):
        to_structure(Diagonal(ones(6)), Structure(BlockDiagonal, 4))
    with pytest.raises(ValueError, match="without the exponent"):
        to_structure(jax.eval_shape(to_scaled, dense), Dense)
    with pytest.raises(ValueError, match="BlockDiagonal alone does not say which"):
        to_structure(twos, BlockDiagonal)
    with pytest.raises(TypeError, match="structure: got 2"):
        to_structure(twos, 2)
    with pytest.raises(TypeError, match="op: got int; an Operator is wanted"):
        structure_of(2)


@pytest.mark.parametrize("name", CLOSED)
def test_in_a_tree_and_in_a_loop(name):
    """Stacks go through `associative_scan` and a composed operator through a scan's carry."""
    full = made(name, (LENGTH,), 0).broadcast(LENGTH)
    prefixes, last = jax.jit(_both_scans)(full)
    assert structure_of(last) == join(full, full) == structure_of(full)
    maps = np.broadcast_to(reference(full), (LENGTH, SIZE, SIZE))
    want = maps[0]
    for t in range(LENGTH):
        got = reference(prefixes)[t] if full.length else reference(prefixes)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
        if t + 1 < LENGTH:
            want = maps[t + 1] @ want
    np.testing.assert_allclose(reference(last), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def _both_scans(full):
    prefixes = jax.lax.associative_scan(compose, full) if jax.tree.leaves(full) else full
    leaves, rebuild = full.slice(1, LENGTH - 1).unstack()
    step = lambda carry, leaves: (compose(carry, rebuild(leaves)), None)  # noqa: E731
    last, _ = jax.lax.scan(step, full.take(0), leaves, length=LENGTH - 1)
    return prefixes, last


def test_compose_differentiates():
    draw = Draw(0, "float32")
    a, b, w = Dense(draw(3, 3)), Diagonal(draw(3)), draw(3, 3)
    loss = lambda a, b: jnp.sum(w * compose(a, b).as_dense())  # noqa: E731
    a_bar, b_bar = jit_once(jax.grad(loss, argnums=(0, 1)))(a, b)
    assert_close(a_bar.matrix, transposed(reference(b)) @ np.asarray(w), "float32")
    assert_close(b_bar.diagonal, np.sum(np.asarray(w) * reference(a), axis=1), "float32", terms=3)


def test_matrix_free_is_not_promised_to_the_algebra():
    """Two maps that were linearised apart hold different programs: no common stack."""
    one, two = (
        MatrixFree(jax.linearize(f, jnp.ones(2))[1], False, jnp.ones(2))
        for f in (jnp.sin, lambda x: x[::-1])
    )
    with pytest.raises(TypeError, match="MatrixFree has no product"):
        stack([one, two])
