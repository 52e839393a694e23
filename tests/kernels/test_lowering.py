"""The scans lower for CUDA, without one at hand, to the kernels that they name."""

import functools

import jax
import jax.numpy as jnp
import pytest
from kernel_cases import draw, needs_kernels

import parscan_bp as pb
from parscan_bp import kernels

pytestmark = needs_kernels

LANES = "lanes_reduce", "lanes_reduce", "lanes_sweep"
TILES = "tile_reduce", "tile_reduce", "tile_sweep"
COLUMNS = "column_reduce", "tile_reduce", "tile_sweep"
"""The kernels that reduce steps, that reduce chunks, and that sweep."""


@pytest.mark.parametrize(
    ("structure", "size", "names"),
    [
        ("diagonal", 20, LANES),
        ("dense", 4, LANES),
        ("dense", 20, TILES),
        ("weighted", 12, COLUMNS),
        ("weighted", 46, TILES),
        ("gru", 12, COLUMNS),
        ("gru", 33, TILES),
        ("lstm", 14, COLUMNS),
    ],
)
@pytest.mark.parametrize(
    ("radices", "reduces", "sweeps"), [([8], 1, 2), ([], 0, 1), ([4, 4], 2, 3)]
)
def test_one_kernel_per_phase(structure, size, names, radices, reduces, sweeps):
    case = draw(structure, 33, 3, size)
    run = jax.jit(lambda *args: case.scan(*args, radices=radices, reverse=True))
    text = run.trace(*case.args).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @mosaic_gpu_v2") == reduces + sweeps
    jaxpr = str(run.trace(*case.args).jaxpr)
    first, later, sweep = names
    called = [first, later][:reduces] + [sweep] * sweeps
    assert [jaxpr.count(f"name={name}") for name in names] == [called.count(name) for name in names]


@pytest.mark.parametrize(
    ("structure", "batch", "size"),
    [("weighted", 1, 5), ("weighted", 1, 53), ("dense", 3, 12), ("dense", 2, 96), ("gru", 9, 40)],
)
def test_bfloat16(structure, batch, size):
    """Rows of 2-byte numbers that fill no whole line of memory."""
    case = draw(structure, 9, batch, size, dtype=jnp.bfloat16)
    run = jax.jit(lambda *args: case.scan(*args, radices=[4]))
    text = run.trace(*case.args).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @mosaic_gpu_v2") == 3


def _loops(solver, length):
    """Loops of the program of a gradient, lowered for a GPU."""
    cell = pb.cells.Elman()
    params = cell.init(jax.random.key(0), 20, 20, jnp.float32)
    init, xs = (jnp.ones((*steps, 2, 20), jnp.float32) for steps in ((), (length,)))

    def loss(params, xs):
        step = functools.partial(cell, params)
        carry, ys = pb.scan(step, init, xs, solver=solver, forward="fused")
        return (ys**2).sum() + carry.sum()

    traced = jax.jit(jax.grad(loss, (0, 1))).trace(params, xs)
    return traced.lower(lowering_platforms=("cuda",)).as_text().count("stablehlo.while")


def test_contributions_are_collected_at_once(monkeypatch):
    monkeypatch.setattr(kernels, "unusable", lambda interpret: None)
    length = 30_000
    assert _loops(pb.Pallas(), length) == 0
    assert _loops(pb.Pallas(collect_chunk=1000), length) == 1
