"""Every kernel, simulated with its races detected, against its reference in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import needs_kernels

from parscan_bp.kernels import interpreter, reference, tiles
from parscan_bp.kernels.column_reduce import column_reduce
from parscan_bp.kernels.factored_maps import FactoredMaps
from parscan_bp.kernels.lanes_reduce import lanes_reduce
from parscan_bp.kernels.lanes_sweep import lanes_sweep
from parscan_bp.kernels.tile_maps import Maps
from parscan_bp.kernels.tile_reduce import tile_reduce
from parscan_bp.kernels.tile_sweep import tile_sweep

pytestmark = needs_kernels

CHUNK, COUNT = 4, 2
TOLERANCE = 2e-6
"""Of the largest entry: products of four maps of order up to 128 in float32."""


def _draw(dtype, *shapes):
    """Random arrays and the same numbers in float64."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    arrays = [jnp.asarray(rng.normal(size=s) / np.sqrt(s[-1]), dtype) for s in shapes]
    return arrays, [np.asarray(a, np.float64) for a in arrays]


def _close(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == jnp.float32
        scale = np.abs(b).max()
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(b) / scale, 0, TOLERANCE)


def _no_races(capfd):
    out, err = capfd.readouterr()
    assert "RACE DETECTED" not in out + err


SLOW_LANES = pytest.param(10, "float32", True, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("size", "dtype", "reverse"),
    [(1, "float32", False), (3, "bfloat16", True), (4, "float32", False), SLOW_LANES],
)
def test_lane_kernels(size, dtype, reverse, capfd):
    shapes = (CHUNK * COUNT, size, size, 128), (CHUNK * COUNT, size, 128), (COUNT, size, 128)
    (a, b, _), exact = _draw(dtype, *shapes)
    enter = jnp.asarray(exact[2], jnp.float32)
    exact[2] = np.asarray(enter, np.float64)
    how = {"chunk": CHUNK, "reverse": reverse}
    simulated = how | {"interpret": interpreter(detect_races=True)}
    _close(lanes_reduce(a, b, **simulated), _float64(reference.lanes_reduce, exact[:2], how))
    want = _float64(reference.lanes_sweep, exact, how)
    _close([lanes_sweep(a, b, enter, **simulated)], [want])
    _no_races(capfd)


# Units, groups and gates of an Elman cell, a GRU, an LSTM; one column in a thread, and several.
COLUMNS = [
    (3, 1, 1, "bfloat16", False, 132),
    (5, 1, 1, "float32", True, 1),
    (3, 1, 3, "float32", False, 1),
    (2, 2, 4, "bfloat16", True, 132),
    pytest.param(20, 1, 1, "float32", True, 1, marks=pytest.mark.slow),
    pytest.param(32, 1, 1, "bfloat16", False, 1, marks=pytest.mark.slow),
    pytest.param(20, 1, 3, "bfloat16", True, 1, marks=pytest.mark.slow),
    pytest.param(20, 2, 4, "float32", False, 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("size", "states", "gates", "dtype", "reverse", "multiprocessors"), COLUMNS
)
def test_column_kernel(size, states, gates, dtype, reverse, multiprocessors, capfd, monkeypatch):
    monkeypatch.setattr(tiles, "SM_COUNT", multiprocessors)
    assert (tiles.columns_of(size, states, COUNT) == 1) == (multiprocessors == 132)
    length, rows = CHUNK * COUNT, (states, size, 128)
    (w,), (exact_w,) = _draw("float32", (gates, size, size))
    shapes = (length, gates, *rows), (length, states, *rows), (length, *rows)
    (entering, direct, b), exact = _draw(dtype, *shapes)
    if gates == 1:
        direct = exact[1] = None
    how = {"chunk": CHUNK, "reverse": reverse}
    got = column_reduce(w, entering, direct, b, **how, interpret=interpreter(detect_races=True))
    want = _float64(reference.column_reduce, (exact_w, *exact), how)
    _close([got[:, :, :-1], got[:, :, -1]], [want[:, :, :-1], want[:, :, -1]])
    _no_races(capfd)


# One per layout: 8, 4 and 1 pairs per warpgroup; samples that do not fill the last one; several
# instances that share the columns; rows and columns that fill no tile.
TILES = [
    (20, 9, "float32", "dense", True),
    pytest.param(24, 9, "bfloat16", "weighted", False, marks=pytest.mark.slow),
    (12, 3, "float32", "weighted", True),
    (32, 3, "bfloat16", "dense", False),
    (36, 1, "float32", "weighted", True),
    pytest.param(128, 1, "float32", "dense", True, marks=pytest.mark.slow),
    pytest.param(128, 2, "bfloat16", "weighted", False, marks=pytest.mark.slow),
    pytest.param(64, 2, "float32", "dense", False, marks=pytest.mark.slow),
    pytest.param(100, 1, "float32", "weighted", True, marks=pytest.mark.slow),
]


# One per layout, and one whose maps are formed a few columns at a time.
FORMED = [
    (20, 9, "float32", (0,)),
    (32, 2, "bfloat16", (-16, 0, 16)),
    pytest.param(96, 1, "float32", (0,), marks=pytest.mark.slow),
    pytest.param(92, 2, "float32", (-48, 0, 48), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "batch", "dtype", "offsets"), FORMED)
def test_tile_kernels_on_formed_maps(size, batch, dtype, offsets, capfd):
    length, gates = CHUNK * COUNT, 3
    vectors = (length, batch, gates + len(offsets), size)
    (w,), (exact_w,) = _draw(dtype, (gates, size, size))
    shapes = vectors, (length, batch, size), (COUNT, batch, size)
    (v, b, enter), exact = _draw("float32", *shapes)
    maps, exact_maps = FactoredMaps(w, v, offsets), FactoredMaps(exact_w, exact[0], offsets)
    how = {"chunk": CHUNK, "reverse": True}
    simulated = how | {"interpret": interpreter(detect_races=True)}
    want = _float64(reference.tile_reduce, (exact_maps, exact[1]), how)
    _close(tile_reduce(maps, b, **simulated), want)
    want = _float64(reference.tile_sweep, (exact_maps, *exact[1:]), how)
    _close([tile_sweep(maps, b, enter, **simulated)], [want])
    _no_races(capfd)


@pytest.mark.parametrize(("size", "batch", "dtype", "structure", "reverse"), TILES)
def test_tile_kernels(size, batch, dtype, structure, reverse, capfd):
    length = CHUNK * COUNT
    vectors = (length, batch, size)
    matrix = (size, size) if structure == "weighted" else (*vectors, size)
    (w, d, b), exact = _draw(dtype, matrix, vectors, vectors)
    (enter,), (exact_enter,) = _draw("float32", (COUNT, batch, size))
    if structure == "dense":
        maps, exact_maps = Maps(w), Maps(exact[0])
    else:
        maps, exact_maps = Maps(w, d), Maps(*exact[:2])
    how = {"chunk": CHUNK, "reverse": reverse}
    simulated = how | {"interpret": interpreter(detect_races=True)}
    want = _float64(reference.tile_reduce, (exact_maps, exact[2]), how)
    _close(tile_reduce(maps, b, **simulated), want)
    want = _float64(reference.tile_sweep, (exact_maps, exact[2], exact_enter), how)
    _close([tile_sweep(maps, b, enter, **simulated)], [want])
    _no_races(capfd)


def _float64(function, args, how):
    """The reference in NumPy's float64, whatever JAX's default precision."""
    with jax.enable_x64(True):
        out = function(*[_to_jax(a) for a in args], **how)
        return tuple(map(np.asarray, out)) if isinstance(out, tuple) else np.asarray(out)


def _to_jax(value):
    if isinstance(value, FactoredMaps):
        return FactoredMaps(jnp.asarray(value.weights), jnp.asarray(value.vectors), value.offsets)
    if isinstance(value, Maps):
        return Maps(jnp.asarray(value.matrix), None if value.d is None else jnp.asarray(value.d))
    return None if value is None else jnp.asarray(value)
