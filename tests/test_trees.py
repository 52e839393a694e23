"""Small leaves of one kind become one array, and come apart again as they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.linearise.passes.group import Grouped
from parscan_bp.trees import map_chunks

FLOAT, HALF = np.dtype("float32"), np.dtype("float16")
GROUPED = Grouped(((3,), (), (3,), (40,), (3,), (40,)), (FLOAT,) * 4 + (HALF, FLOAT), most=100)


def test_only_small_leaves_of_one_shape_and_dtype_are_grouped():
    assert GROUPED.groups == ((0, 2), (1,), (3,), (4,), (5,))


def test_many_leaves_are_not_joined():
    """XLA takes long to compile the join, as long as all else for 60 of them."""
    for count, groups in ((8, 1), (9, 9)):
        grouped = Grouped(((),) * count, (FLOAT,) * count, most=100)
        assert len(grouped.groups) == groups


@pytest.mark.parametrize("lead", [(), (2,), (5, 2)])
def test_leaves_come_apart_as_they_were(lead):
    kinds = zip(GROUPED.shapes, GROUPED.dtypes, strict=True)
    leaves = [jnp.full((*lead, *shape), k, dtype) for k, (shape, dtype) in enumerate(kinds)]
    joined = GROUPED.join(leaves)
    assert [a.shape for a in joined[:2]] == [(*lead, 2, 3), lead]
    for got, want in zip(GROUPED.split(joined), leaves, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 9])
def test_chunks_are_those_of_all_entries_in_their_order(size):
    tree = {"a": np.arange(14.0, dtype=np.float32).reshape(7, 2), "b": np.arange(7)}
    made = jax.jit(lambda t: map_chunks(lambda t: {"sum": t["a"].sum(1) - t["b"]}, t, 7, size))(
        tree
    )
    np.testing.assert_array_equal(made["sum"], tree["a"].sum(1) - tree["b"])
