"""The compiled kernels, on a GPU: ``pytest -m "gpu and not slow"``, or all with ``-m gpu``."""

import jax
import jax.numpy as jnp
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


IN_BFLOAT16 = [("diagonal", 20), ("dense", 4), ("dense", 20), ("dense", 64)]
IN_BFLOAT16 += [("weighted", 20), ("weighted", 128), ("gru", 32), ("lstm", 40)]


@pytest.mark.parametrize(("structure", "size"), IN_BFLOAT16)
def test_in_bfloat16(structure, size):
    case = draw(structure, 33, 3, size, reverse=True, dtype=jnp.bfloat16)
    run = jax.jit(lambda *args: case.scan(*args, radices=radices_of(33, 3, size), reverse=True))
    case.check(run(*case.args))
