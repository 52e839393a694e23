"""The scans lower for CUDA, without one at hand, to the kernels that they name."""

import jax
import pytest
from kernel_cases import draw, needs_kernels

pytestmark = needs_kernels

LANES, TILES = ("lanes_reduce", "lanes_sweep"), ("tile_reduce", "tile_sweep")


@pytest.mark.parametrize(
    ("structure", "size", "names"),
    [
        ("diagonal", 20, LANES),
        ("dense", 10, LANES),
        ("dense", 20, TILES),
        ("weighted", 33, TILES),
        ("gru", 33, TILES),
        ("lstm", 40, TILES),
    ],
)
@pytest.mark.parametrize(
    ("radices", "reduces", "sweeps"), [([8], 1, 2), ([], 0, 1), ([2] * 6, 5, 6)]
)
def test_one_kernel_per_phase(structure, size, names, radices, reduces, sweeps):
    case = draw(structure, 33, 3, size)
    run = jax.jit(lambda *args: case.scan(*args, radices=radices, reverse=True))
    text = run.trace(*case.args).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @mosaic_gpu_v2") == reduces + sweeps
    jaxpr = str(run.trace(*case.args).jaxpr)
    assert [jaxpr.count(f"name={name}") for name in names] == [reduces, sweeps]
