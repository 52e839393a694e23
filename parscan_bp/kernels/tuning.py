"""The chunk that is fastest on the device at hand, measured once."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.kernels.tiles import chunk_of
from parscan_bp.types import Array

_BEST: dict[Any, int] = {}
"""Chunks found, by kernel, shapes and dtypes, and device."""


def autotune(
    scan: Callable[..., Array],
    *args: Any,
    candidates: Sequence[int] | None = None,
    repeats: int = 5,
    interpret: Any = None,
) -> int:
    """The steps per chunk with which a scan of kernels takes the least time.

    The first call with some types compiles and runs the scan for every candidate; later calls in
    this process return what it found. Nothing else looks the result up: give it to
    ``Pallas(mode="chunked", chunk=...)``.

    Args:
      scan: `dense_scan`, `diagonal_scan`, `weighted_scan` or `factored_scan`.
      *args: its arrays, b and the first state last, on the device; their values do not matter.
      candidates: chunks to try; ``None`` tries half, one, two and four times `tiles.chunk_of`.
      repeats: runs of each, of which the median counts.
      interpret: see `compat.kernel`.

    Returns:
      The chunk.

    Raises:
      ValueError: if there is no candidate or no run.
    """
    given = jax.tree.leaves(args)
    if candidates is None:
        middle = chunk_of(jnp.shape(args[-2])[0])
        candidates = [middle // 2, middle, 2 * middle, 4 * middle]
    if not candidates or repeats < 1:
        raise ValueError(
            f"candidates, repeats: got {candidates!r} and {repeats}; at least one of each is wanted"
        )
    kinds = tuple((a.shape, str(a.dtype)) for a in given)
    (device,) = given[0].devices()
    key = (scan.__name__, kinds, tuple(candidates), device.device_kind)
    if key not in _BEST:
        times = {c: _time(scan, args, c, repeats, interpret) for c in candidates}
        _BEST[key] = min(times, key=lambda c: times[c])
    return _BEST[key]


def _time(scan, args, chunk, repeats, interpret) -> float:
    """Seconds of one run, the median; compiling is not counted."""
    run = jax.jit(functools.partial(scan, radices=[chunk], interpret=interpret))
    jax.block_until_ready(run(*args))
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        found.append(time.perf_counter() - start)
    return statistics.median(found)
