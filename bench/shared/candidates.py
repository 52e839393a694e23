"""The scans that are compared: `jax.lax.scan` in its forms, and `parscan_bp.scan` by solver."""

import functools
from collections.abc import Callable
from typing import Any

import jax

import parscan_bp

Scan = Callable[..., Any]

AUTO = "auto"
SOLVERS: dict[str, Any] = {
    AUTO: None,
    "sweep": parscan_bp.Sweep(),
    "kept": parscan_bp.Sweep(recompute=False),
    "associative": parscan_bp.Associative(),
    "blelloch": parscan_bp.Blelloch(),
    "chunked": parscan_bp.Chunked(),
    "corrections": parscan_bp.ChunkedCorrections(),
}
# Not ours, but what lax.scan offers to those who want to store no more than we do.
CHECKPOINTED = "checkpointed"
RIVALS = (*SOLVERS, CHECKPOINTED)
# A solver named by the caller runs or raises; these are the ways it says that it can't.
REFUSALS = (NotImplementedError, ValueError, MemoryError)

# Solvers that hold the Jacobian of every step, and how many times over: a tree keeps the levels
# it has reduced beside the ones it is expanding.
_TREE_COPIES = {"associative": 3, "blelloch": 3}


def baseline(unroll: int = 1) -> Scan:
    """`jax.lax.scan` with an unroll factor: the rung above the plain jitted scan."""
    return functools.partial(jax.lax.scan, unroll=unroll)


def checkpointed(step: Callable[..., Any], init: Any, xs: Any, unroll: int = 1) -> Any:
    """`jax.lax.scan` of a rematerialised step: the least memory lax.scan itself offers."""
    return jax.lax.scan(jax.checkpoint(step, prevent_cse=False), init, xs, unroll=unroll)


def candidate(solver: str, unroll: int = 1) -> Scan:
    """`parscan_bp.scan` with the named solver; "auto" lets it choose."""
    return functools.partial(parscan_bp.scan, solver=SOLVERS[solver], unroll=unroll)


def rival(name: str, unroll: int = 1) -> Scan:
    """One of `RIVALS`: a `candidate`, or the checkpointed `jax.lax.scan`."""
    if name == CHECKPOINTED:
        return functools.partial(checkpointed, unroll=unroll)
    return candidate(name, unroll)


def jacobian_bytes(solver: str, length: int, batch: int, state: int) -> int:
    """An estimate of what a solver keeps in Jacobians: copies * T * B * S^2 float32.

    Zero for solvers that keep no more than a stretch at a time.
    """
    return _TREE_COPIES.get(solver, 0) * length * batch * state**2 * 4
