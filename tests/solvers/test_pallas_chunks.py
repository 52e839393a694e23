"""The chunks of the GPU kernels, by rates that say where they come from."""

import json
import pathlib

import jax
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense, Diagonal, Factored
from parscan_bp.solvers import pallas_chunks
from parscan_bp.solvers.gpu_rates import DEFAULT, gpu_rates
from parscan_bp.solvers.pallas_chunks import (
    DIAGONAL,
    chunk_of,
    chunked_ns,
    radices_of,
    reduction_of_cell,
    reduction_of_matrices,
)

ROOT = pathlib.Path(__file__).parents[2]
RATES = gpu_rates(DEFAULT)
DATA = json.loads((ROOT / "parscan_bp/choice/data/gpu.json").read_text())
SOURCES = "measured", "predicted", "assumed"
LANES, TILES, COLUMNS = reduction_of_matrices(8), reduction_of_matrices(20), reduction_of_cell(20)


@pytest.mark.parametrize("kind", DATA)
def test_every_number_says_where_it_comes_from(kind):
    held = DATA[kind]
    told = [one for name, one in held.items() if name not in ("multiprocessors", "reduce")]
    assert all(one["from"].startswith(SOURCES) for one in [*told, *held["reduce"].values()])
    # Nothing was timed since there are these kernels.
    for one in held["recurrence"], held["reduce"]["columns"]:
        assert one["from"].startswith("predicted: ")


def test_the_recorded_solves_are_predicted():
    """By what was measured of the tile kernels, which made them."""
    points = json.loads((ROOT / "bench/results/gpu.json").read_text())["points"]
    points = [p for p in points if p["length"] >= 1000 and p["batch"] >= 8]
    assert len(points) >= 4
    for point in points:
        (chunk,) = point["floor"]["radices"]
        seconds = point["contenders"]["kernels"]["times"]["solve"]["median"]
        tiles = reduction_of_matrices(point["hidden"])
        predicted = chunked_ns(tiles, point["length"], point["batch"], chunk, RATES)
        assert predicted == pytest.approx(seconds * 1e9, rel=0.2)


def test_a_gpu_that_is_not_known_is_taken_to_be_like_one_that_is():
    assert gpu_rates("another") == RATES


def test_the_kernels():
    of_lstm = reduction_of_cell(20, states=2, gates=4)
    reductions = LANES, TILES, COLUMNS, of_lstm, reduction_of_cell(64)
    names = [reduction.kernel for reduction in reductions]
    assert names == ["lanes", "tiles", "columns", "columns", "tiles"]
    products = [reduction.products for reduction in reductions]
    assert products == [576, 8400, 8400, 4 * 20**2 * 41, 64**2 * 65]


@pytest.mark.parametrize("reduction", [LANES, TILES, COLUMNS], ids=lambda r: r.kernel)
def test_products_are_made_while_the_gpu_is_not_full(reduction):
    """Where the fused sequential pass was the faster, at B=256 and T=1000, tiles are not used."""
    chosen = [radices_of(reduction, 1000, b, RATES) for b in (1, 16, 256, 1024, 2**17)]
    used = [bool(radices) for radices in chosen]
    assert used == sorted(used, reverse=True)
    assert used[1] and not used[-1]
    assert used[2] == (reduction != TILES)


def test_elementwise_maps():
    assert radices_of(DIAGONAL, 10_000, 2**16, RATES) == []
    (chunk,) = radices_of(DIAGONAL, 10_000, 320, RATES)
    # 2 C + T / C steps, of which sqrt(T / 2) has the fewest.
    assert abs(chunk - 70.7) <= 4


@pytest.mark.parametrize("length", [1, 2, 10])
def test_few_steps_are_one_kernel(length):
    assert radices_of(TILES, length, 16, RATES) == []


def _radices(solver, operator, monkeypatch):
    """Those that a solve of the kernels is given."""
    found = []

    def scan(*args, radices, **how):
        found.append(radices)
        return jax.numpy.zeros(args[-2].shape)

    for name in ("diagonal_scan", "dense_scan", "weighted_scan"):
        monkeypatch.setattr(pallas_chunks.kernels, name, scan, raising=False)
    monkeypatch.setattr(pallas_chunks.kernels, "unusable", lambda interpret: None, raising=False)
    length = operator.stack_shape[0]
    vectors = jax.ShapeDtypeStruct((length + 1, 16, operator.shape[0]), "float32")
    jax.eval_shape(lambda a, g: pb.solve(pb.Uniform(a, g), solver), operator, vectors)
    return found[0]


@pytest.mark.parametrize(
    ("make", "shapes", "reduction"),
    [
        (Diagonal, [(1000, 16, 20)], DIAGONAL),
        (Dense, [(1000, 16, 8, 8)], LANES),
        (Dense, [(1000, 16, 20, 20)], TILES),
        (Factored.from_diagonal, [(20, 20), (1000, 16, 20)], COLUMNS),
        (Factored.from_diagonal, [(64, 64), (1000, 16, 64)], reduction_of_cell(64)),
    ],
)
def test_the_solver_asks_for_the_kernel_that_it_uses(make, shapes, reduction, monkeypatch):
    operator = jax.eval_shape(make, *(jax.ShapeDtypeStruct(s, "float32") for s in shapes))
    batch = 320 if reduction == DIAGONAL else 16
    chosen = radices_of(reduction, 1000, batch)
    assert _radices(pb.Pallas(), operator, monkeypatch) == chosen
    chunk = chunk_of(reduction, 1000, batch)
    assert _radices(pb.Pallas(mode="chunked"), operator, monkeypatch) == [chunk]
    assert _radices(pb.Pallas(mode="chunked", chunk=7), operator, monkeypatch) == [7]
    assert _radices(pb.Pallas(mode="sequential"), operator, monkeypatch) == []
