"""Results of two programs that should be one: their trees, types, places and numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

ROUNDING = {
    # Relative to a leaf's largest entry, and to the largest entry of all leaves.
    "float64": (1e-8, 1e-12),
    "float32": (3e-4, 1e-6),
    "bfloat16": (0.15, 0.05),
}


def difference(got: Any, want: Any, *, low: bool = False) -> str:
    """How two results differ, or nothing.

    Args:
      got, want: pytrees of arrays, or exceptions that were raised instead.
      low: whether numbers were rounded to bfloat16 on the way.
    """
    if isinstance(want, Exception) and isinstance(got, Exception):
        if isinstance(got, type(want)) or isinstance(want, type(got)):
            return ""
        return f"raises {_first_line(got)} where the reference raises {_first_line(want)}"
    if isinstance(got, Exception):
        return f"raises {_first_line(got)}"
    if isinstance(want, NotImplementedError):
        return ""  # what JAX cannot do itself says nothing of ours
    if isinstance(want, Exception):
        return f"runs where the reference raises {_first_line(want)}"
    if jax.tree.structure(got) != jax.tree.structure(want):
        return f"tree {jax.tree.structure(got)} for {jax.tree.structure(want)}"
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))
    overall = max((_size(b) for _, b in pairs), default=0.0)
    for k, (a, b) in enumerate(pairs):
        found = _difference(a, b, overall, low)
        if found:
            return f"leaf {k}: {found}"
    return ""


def _difference(a: Any, b: Any, overall: float, low: bool) -> str:
    if type(a) is not type(b):
        return f"{type(a).__name__} for {type(b).__name__}"
    if jax.typeof(a) != jax.typeof(b) or _weak(a) != _weak(b):
        return f"type {_type(a)} for {_type(b)}"
    if isinstance(b, jax.Array) and not a.sharding.is_equivalent_to(b.sharding, b.ndim):
        return f"sharding {a.sharding} for {b.sharding}"
    x, y = _numbers(a), _numbers(b)
    finite = np.isfinite(y)
    if not np.array_equal(np.where(finite, 0, y), np.where(np.isfinite(x), 0, x), equal_nan=True):
        return f"{np.sum(~np.isfinite(x))} not finite for {np.sum(~finite)}"
    if not y.size or not np.issubdtype(y.dtype, np.inexact):
        return "" if np.array_equal(x, y) else "other integers"
    own, all_leaves = ROUNDING[_precision(b, low)]
    allowed = own * _size(b) + all_leaves * overall
    error = np.max(np.abs(np.where(finite, x - y, 0)), initial=0.0)
    if error <= allowed:
        return ""
    return f"error {error:.2g} of {_size(b):.2g}, {allowed:.1g} allowed"


def _precision(v: Any, low: bool) -> str:
    if low or v.dtype == jax.numpy.bfloat16:
        return "bfloat16"
    return "float64" if v.dtype in (np.float64, np.complex128) else "float32"


def _weak(v: Any) -> bool:
    return bool(getattr(v, "weak_type", False))


def _type(v: Any) -> str:
    return f"{jax.typeof(v).str_short()}{' weak' if _weak(v) else ''}"


def _numbers(v: Any) -> np.ndarray:
    v = np.asarray(v)
    if v.dtype == jax.dtypes.float0:
        return np.zeros(v.shape, bool)
    return v.astype(np.float64) if v.dtype == jax.numpy.bfloat16 else v


def _size(v: Any) -> float:
    v = _numbers(v)
    if not np.issubdtype(v.dtype, np.inexact):
        return 0.0
    return float(np.max(np.abs(np.where(np.isfinite(v), v, 0)), initial=0.0))


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}"
