"""How work is divided: what no simulation of a warpgroup as one thread can see."""

import pytest
from recurrence_cases import CELLS

from parscan_bp.cells.fused import FusedCell
from parscan_bp.kernels.rule import Rule
from parscan_bp.kernels.tiles import MIN_ORDER, fused_tile, padded_order

THREADS_OF_A_ROW = 4


@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_order_gives_each_thread_of_a_row_two_columns(itemsize):
    """With one, its part of a sum is fused into its neighbour's addition, and the four differ."""
    orders = [padded_order(size, itemsize) for size in range(1, 129)]
    assert min(orders) == MIN_ORDER == 2 * THREADS_OF_A_ROW
    assert all(order * itemsize % 16 == 0 for order in orders)
    assert all(size <= order <= max(8, size + 7) for size, order in enumerate(orders, 1))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("cell", CELLS)
def test_so_does_every_slice_of_a_weight(cell, itemsize):
    form = FusedCell(CELLS[cell])
    for rule in form.forward_rule, form.backward_rule, form.backward_rule_of_last:
        for size in sorted({padded_order(size, itemsize) for size in range(1, 257)}):
            tile = fused_tile(rule, size, 1, itemsize)
            slices = tile.slices(size)
            assert [c for start, n in slices for c in range(start, start + n)] == [*range(size)]
            assert max(n for _, n in slices) <= tile.columns
            least = 4 if tile.apart else 2 * THREADS_OF_A_ROW  # in a row of its own
            assert all(n >= least and n % 4 == 0 for _, n in slices), (rule, size)


def _rule(**counts):
    numbers = {"products": 1, "inputs": 1, "states": 0} | counts
    return Rule("Own", lambda v, y, state: (y, state), **numbers)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"operands": 1, "outputs": 2, "sums": 3}, "sums: got 3.* at most the 2 outputs"),
        ({"operands": 2, "outputs": 3, "sums": 1}, "sums: got 1.* at least the 2 operands"),
        ({"operands": 3, "outputs": 2}, "operands: got 3"),
    ],
)
def test_a_rule_with_more_sums_than_outputs_is_refused(counts, said):
    """What is summed leaves through the places of what came before the first step."""
    with pytest.raises(ValueError, match=said):
        _rule(**counts)
    assert _rule(operands=1, outputs=2, sums=2).starts == 3
