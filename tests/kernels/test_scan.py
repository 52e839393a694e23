"""The scans of kernels, simulated, against float64 substitution."""

import jax.numpy as jnp
import pytest
from kernel_cases import CASES, chunked, draw, needs_kernels

from parscan_bp.kernels import interpreter

pytestmark = [needs_kernels, pytest.mark.usefixtures("one_multiprocessor")]


def _check(structure, length, batch, size, radices, reverse):
    case = draw(structure, length, batch, size, reverse=reverse)
    how = {"radices": radices, "reverse": reverse, "interpret": interpreter()}
    case.check(case.scan(*case.args, **how))


@pytest.mark.parametrize(
    ("structure", "length", "batch", "size", "radices", "reverse"),
    [
        ("dense", 33, 3, 4, [8], True),
        ("dense", 5, 3, 12, [2] * 3, True),
        ("dense", 1, 1, 33, [], True),
        ("weighted", 9, 3, 10, [4], False),
        ("weighted", 33, 16, 1, [5], True),
        ("weighted", 2, 1, 7, [1], True),
        ("weighted", 33, 3, 3, [8, 2], False),
        pytest.param("weighted", 3, 16, 20, [2], True, marks=pytest.mark.slow),
        ("gru", 7, 3, 5, [4], True),
        ("lstm", 5, 2, 6, [2], False),
        ("diagonal", 33, 16, 10, [8], True),
        ("diagonal", 31, 1, 3, [4, 2], False),
    ],
)
def test_a_spread_of_sizes(structure, length, batch, size, radices, reverse):
    _check(structure, length, batch, size, radices, reverse)


@pytest.mark.parametrize("structure", ["dense", "weighted"])
def test_bfloat16(structure):
    case = draw(structure, 5, 3, 12, dtype=jnp.bfloat16)
    case.check(case.scan(*case.args, radices=[4], interpret=interpreter()))


# A thousand steps of larger maps take from minutes to hours to simulate.
SIMULATED = [c for c in CASES if c[0] == "diagonal" or c[1] < 1000 or c[3] <= 20]


@pytest.mark.slow
@pytest.mark.parametrize(("structure", "length", "batch", "size"), SIMULATED)
def test_the_grid(structure, length, batch, size):
    _check(structure, length, batch, size, chunked(length), True)
