"""Small leaves of one kind become one array, and come apart again as they were."""

import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.linearise.passes.group import Grouped

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
