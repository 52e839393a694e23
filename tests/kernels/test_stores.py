"""Copies out of shared memory stay inside the array, and where they are bytes, inside its rows."""

import types

import pytest

from parscan_bp.kernels import compat


@pytest.mark.parametrize(
    ("shape", "box", "room"),
    [
        # One row at a time, or whole rows: one run of bytes, which nothing clips.
        ((5, 3, 100), (1, 1, 128), (5, 3, 128)),
        ((5, 3, 1, 20), (1, 1, 1, 32), (5, 3, 1, 32)),
        ((5, 3, 16), (1, 4, 16), (5, 4, 16)),
        # Several parts of rows: the copy engine clips them.
        ((5, 3, 20), (1, 8, 24), (5, 3, 20)),
        ((5, 3, 100, 100), (1, 1, 128, 48), (5, 3, 100, 100)),
        ((5, 8, 24), (1, 8, 24), (5, 8, 24)),
    ],
)
def test_room(shape, box, room):
    assert compat.room(shape, box) == room


def test_a_store_without_room_is_an_error():
    slices = [compat.pl.ds(0, size) for size in (1, 128)]
    with pytest.raises(AssertionError, match=r"\(5, 3, 100\), \[1, 1, 128\]"):
        compat.store(None, types.SimpleNamespace(shape=(5, 3, 100)), 0, *slices)
