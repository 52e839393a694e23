"""Grids of operators: products block by block, sums where paths meet, and what has no grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from operator_examples import Draw, assert_close
from operator_references import reference

from parscan_bp.operators import (
    BlockSparse,
    ChannelDense,
    ChannelSlice,
    Dense,
    Diagonal,
    Identity,
    MatrixFree,
    Sum,
    compose,
    compose_cost,
    compose_shape,
    to_structure,
)

DRAW = Draw(0, "float32")
# One value of 2 passes through beside one of 3; then both meet in one of 2.
SPLIT = BlockSparse((Identity(2), Dense(DRAW(2, 3))), ((0, 0), (0, 1)), rows=(2,), cols=(2, 3))
JOIN = BlockSparse((Diagonal(DRAW(2)), Dense(DRAW(3, 2))), ((0, 0), (1, 0)), rows=(2, 3), cols=(2,))


def test_a_product_keeps_the_structures_of_its_blocks():
    outer = compose(SPLIT, JOIN)
    assert outer.places == ((0, 0), (0, 1), (1, 0), (1, 1))
    kinds = [type(block) for block in outer.blocks]
    assert kinds == [Diagonal, Dense, Dense, Dense]
    assert_close(reference(outer), reference(JOIN) @ reference(SPLIT), "float32", terms=6)
    inner = compose(JOIN, SPLIT)
    assert_close(reference(inner), reference(SPLIT) @ reference(JOIN), "float32", terms=6)
    # Diagonal times identity, and a product of matrices: added at one place.
    assert [type(block) for block in inner.blocks] == [Dense]


def test_the_identity_is_never_multiplied():
    grid = BlockSparse((Identity(2), Dense(DRAW(3, 3))), ((0, 0), (1, 1)), (2, 3), (2, 3))
    assert compose_cost(grid, grid).flops == 2 * 27
    assert [type(block) for block in compose(grid, grid).blocks] == [Identity, Dense]
    shaped = compose_shape(SPLIT, JOIN)
    want = jax.eval_shape(compose, SPLIT, JOIN)
    assert jax.tree.structure(shaped) == jax.tree.structure(want)
    assert jax.tree.map(lambda a: a.shape, shaped.blocks[1]).matrix == (2, 3)


def test_diagonals_that_meet_add_up_to_a_diagonal():
    terms = [(0, 0, Identity(2)), (0, 0, Diagonal(jnp.array([1.0, 2.0])))]
    (block,) = BlockSparse.of(terms, (2,), (2,)).blocks
    assert block.diagonal.tolist() == [2.0, 3.0]


def test_what_is_not_full_is_added_when_it_is_applied():
    """As of an image that is concatenated with itself: no matrix of all its numbers."""
    slices = [ChannelSlice(64, 2, start, 1) for start in (0, 1)]
    (block,) = BlockSparse.of([(0, 0, a) for a in slices], (64,), (128,)).blocks
    assert isinstance(block, Sum) and block.composes
    assert (np.asarray(block.matvec(jnp.ones(128))) == 2).all()
    (block,) = BlockSparse.of(
        [(0, 0, a) for a in (Dense(DRAW(2, 2)), Identity(2))], (2,), (2,)
    ).blocks
    assert isinstance(block, Dense)


def test_grids_that_do_not_fit_are_multiplied_as_matrices():
    other = BlockSparse((Dense(DRAW(3, 2)), Identity(2)), ((0, 0), (1, 0)), (3, 2), (2,))
    for first in (other, Diagonal(DRAW(5)), Dense(DRAW(5, 4))):
        got = compose(first, SPLIT)
        assert isinstance(got, Dense)
        assert_close(reference(got), reference(SPLIT) @ reference(first), "float32", terms=6)


def test_a_product_without_a_path_is_zero():
    left = BlockSparse((Identity(2),), ((0, 0),), (2,), (2, 1))
    right = BlockSparse((Dense(DRAW(1, 1)),), ((1, 0),), (2, 1), (1,))
    assert compose(right, left).as_dense().tolist() == [[0.0], [0.0]]


def test_matrix_free_blocks_have_products_with_vectors_alone():
    linear = Partial(lambda w, v: w * jnp.cumsum(v), jnp.array([1.0, 2.0]))
    free = MatrixFree(linear, False, jax.ShapeDtypeStruct((2,), jnp.float32))
    grid = BlockSparse((Identity(2), free), ((0, 0), (1, 0)), (2, 2), (2,))
    assert not grid.composes
    assert grid.matvec(jnp.array([1.0, 10.0])).tolist() == [1.0, 10.0, 1.0, 22.0]
    # A solver that multiplies has its matrix.
    got = compose(Dense(jnp.eye(2)), grid)
    assert got.as_dense().tolist() == [[1, 0], [0, 1], [1, 0], [2, 2]]
    (block,) = BlockSparse.of([(0, 0, free), (0, 0, free)], (2,), (2,)).blocks
    assert isinstance(block, Sum) and not block.composes


def test_a_vector_that_maps_share_and_rows_without_blocks():
    op = BlockSparse((Diagonal(DRAW(5, 2)),), ((1, 0),), rows=(1, 2), cols=(2, 3))
    v = np.ones(5, np.float32)
    got = op.matvec(v)
    assert got.shape == (5, 3)
    np.testing.assert_allclose(got, reference(op) @ v, rtol=1e-6)


def test_half_precision_is_added_in_single():
    ones = [Identity(1, jnp.float16)] * 2
    many = [Diagonal(jnp.full(1, 2.0**-11, jnp.float16))] * 2
    op = BlockSparse((*ones[:1], *many), ((0, 0), (0, 1), (0, 2)), rows=(1,), cols=(1, 1, 1))
    assert op.matvec(jnp.ones(3, jnp.float16)).tolist() == [1 + 2.0**-10]


def test_a_slice_of_channels_is_held_by_blocks_of_them():
    op = ChannelSlice(2, 3, 1, 1)
    for kind in (op, op.transpose()):
        assert_close(reference(to_structure(kind, ChannelDense)), reference(kind), "float32")
    product = compose(op.transpose(), Diagonal(jnp.arange(6.0)))
    np.testing.assert_array_equal(
        product.as_dense(), np.diag(np.arange(6.0)) @ reference(op.transpose())
    )
    # Of a full matrix the rows are taken.
    text = str(jax.make_jaxpr(lambda a: compose(Dense(a), op).matrix)(jnp.ones((6, 4))))
    assert "dot_general" not in text


MISTAKES = {
    "none": (lambda: BlockSparse((), (), (1,), (1,)), ValueError, "blocks: got none"),
    "places": (
        lambda: BlockSparse((Identity(1),), (), (1,), (1,)).shape,
        ValueError,
        "places: got 0 for 1 blocks",
    ),
    "no operator": (
        lambda: BlockSparse((1,), ((0, 0),), (1,), (1,)).shape,
        TypeError,
        r"blocks\[0\]: got int; an Operator",
    ),
    "outside": (
        lambda: BlockSparse((Identity(1),), ((0, 1),), (1,), (1,)).shape,
        ValueError,
        r"places\[0\]: got \(0, 1\); one in the grid of 1 times 1",
    ),
    "twice": (
        lambda: BlockSparse((Identity(1),) * 2, ((0, 0),) * 2, (1,), (1,)).shape,
        ValueError,
        r"places\[1\]: got \(0, 0\) twice",
    ),
    "size": (
        lambda: BlockSparse((Identity(2),), ((0, 0),), (1,), (1,)).shape,
        ValueError,
        r"blocks\[0\]: got \(2, 2\); the place \(0, 0\) is of \(1, 1\)",
    ),
    "channels": (
        lambda: ChannelSlice(1, 3, 2, 2),
        ValueError,
        "start: got 2 for 2 of 3 channels; 0 to 1 is wanted",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    run, kind, told = MISTAKES[name]
    with pytest.raises(kind, match=told):
        run()
