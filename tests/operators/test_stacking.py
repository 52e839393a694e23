"""Stacks: making them from maps or pieces, and taking them apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from operator_examples import EXAMPLES, LENGTH, SQUARE, Draw, Integers
from operator_references import reference, transposed

from parscan_bp.operators import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Identity,
    Structure,
    concatenate,
    stack,
    structure_of,
    to_scaled,
)
from tests.family import together


@pytest.mark.parametrize("example", EXAMPLES, ids=repr)
def test_stack_and_concatenate_undo_take_and_slice(example, request):
    made = lambda example: example.make(Draw(0, "float32"), (LENGTH,))  # noqa: E731
    op = made(example)
    again, longer, same = together(request, lambda example: (_taken_apart, [made(example)]))
    assert jax.tree.structure(again) == jax.tree.structure(op)
    np.testing.assert_array_equal(reference(again), reference(op))
    # The weights of a cell are still there once.
    assert again.nbytes == op.nbytes
    if op.length is None:
        told = rf"ops\[0\]: every leaf of this {type(op).__name__} is shared"
        with pytest.raises(ValueError, match=told):
            concatenate([op, op])
        return
    assert jax.tree.structure(longer) == jax.tree.structure(op)
    np.testing.assert_array_equal(reference(longer), reference(op))
    assert longer.nbytes == op.nbytes
    assert same.stack_shape == (2, LENGTH)
    np.testing.assert_array_equal(reference(same)[1], reference(op))


def _taken_apart(op):
    longer = concatenate([op.slice(0, 2), op.slice(2, 3)]) if op.length else None
    return stack([op.take(t) for t in range(LENGTH)]), longer, stack([op, op])


def test_stack_joins_what_differs():
    draw = Draw(0, "bfloat16")
    diagonal, twos = Diagonal(draw(6)), BlockDiagonal(draw(3, 2, 2))
    threes, dense = BlockDiagonal(draw(2, 3, 3)), Dense(draw(6, 6))
    for ops, want in (
        ([Identity(6), diagonal], Structure(Diagonal)),
        ([diagonal, twos, Identity(6)], Structure(BlockDiagonal, 2)),
        ([twos, threes], Structure(BlockDiagonal, 6)),
        ([diagonal, dense], Structure(Dense)),
        ([to_scaled(diagonal), twos], Structure(BlockDiagonal, 2, True)),
        ([Identity(6), Identity(6, jnp.float64)], Structure(Identity)),
    ):
        got = stack(ops)
        assert structure_of(got) == want
        if want.kind is not Identity:
            assert got.dtype == jnp.bfloat16  # the identity's own dtype promotes nothing
            np.testing.assert_array_equal(reference(got), np.stack([reference(op) for op in ops]))
    (example,) = [e for e in SQUARE if e.name == "elman"]
    elman = example.make(Integers(0, "float32"), (2,))
    both = concatenate([elman, elman.transpose()])
    assert structure_of(both) == Structure(Dense)
    want = np.concatenate([reference(elman), transposed(reference(elman))])
    np.testing.assert_array_equal(reference(both), want)


def test_stack_broadcasts_batch_axes():
    draw = Draw(0, "float32")
    shared, batched = Dense(draw(3, 3)), Dense(draw(4, 3, 3))
    got = stack([shared, batched])
    assert got.stack_shape == (2, 4)
    np.testing.assert_array_equal(reference(got)[0, 2], reference(shared))
    with pytest.raises(ValueError, match=r"batch axes \[\(4,\), \(2,\)\] do not broadcast"):
        stack([batched, Dense(draw(2, 3, 3))])
    with pytest.raises(ValueError, match="equal ranks"):
        concatenate([batched, Dense(draw(4, 2, 3, 3))])
    with pytest.raises(ValueError, match=r"ops\[1\]: got \(2, 2\); ops\[0\] is \(3, 3\)"):
        stack([shared, Dense(draw(2, 2))])
    with pytest.raises(ValueError, match="ops: got none"):
        stack([])
    with pytest.raises(TypeError, match=r"ops\[1\]: got float"):
        stack([shared, 1.0])
