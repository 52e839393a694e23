"""The compiled kernels, on a GPU: ``pytest -m "gpu and not slow"``, or all with ``-m gpu``."""

import jax
import pytest
from kernel_cases import CASES, draw, in_turn, needs_kernels

from parscan_bp.kernels import radices_of

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize(
    ("structure", "length", "batch", "size", "reverse"),
    in_turn(CASES, lambda structure, length, batch, size: (structure, size)),
)
def test_compiled_kernels(structure, length, batch, size, reverse):
    case = draw(structure, length, batch, size, reverse=reverse)
    radices = radices_of(length, batch, size)
    run = jax.jit(lambda *args: case.scan(*args, radices=radices, reverse=reverse))
    case.check(run(*case.args))
