"""The compiled kernels, on a GPU: ``pytest -m "gpu and not slow"``, or all with ``-m gpu``."""

import jax
import jax.numpy as jnp
import pytest
from kernel_cases import CASES, chunked, draw, in_turn, needs_kernels

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
    how = {"radices": chunked(length), "reverse": reverse}
    run = jax.jit(lambda *args: case.scan(*args, **how))
    case.check(run(*case.args))


IN_BFLOAT16 = [("diagonal", 20), ("dense", 4), ("dense", 20), ("dense", 64)]
IN_BFLOAT16 += [("weighted", 20), ("weighted", 128), ("gru", 32), ("lstm", 40)]


@pytest.mark.parametrize(("structure", "size"), IN_BFLOAT16)
def test_in_bfloat16(structure, size):
    case = draw(structure, 33, 3, size, reverse=True, dtype=jnp.bfloat16)
    run = jax.jit(lambda *args: case.scan(*args, radices=chunked(33), reverse=True))
    case.check(run(*case.args))
