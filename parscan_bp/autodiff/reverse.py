"""`scan` as a `jax.custom_vjp`, for those who want reverse-mode and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import jax

from parscan_bp.autodiff.fused import checked_forward
from parscan_bp.autodiff.scan import left_to_lax, scan
from parscan_bp.types import PyTree


def custom_vjp_scan(
    f: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    **options,
) -> tuple[PyTree, PyTree]:
    """`parscan_bp.scan` under a `jax.custom_vjp`: one reverse pass, nothing else.

    Between the passes it saves what `scan` saves: its inputs, the values that ``f`` closes over,
    and the carry after every step. Forward-mode raises, and so do Hessian-vector products; in
    return no transformation ever sees the rule of `scan`. Outside `jax.jit` the step is traced
    at every call. Under `jax.disable_jit`, without a named solver, it is `jax.lax.scan`.

    Args:
      f, init, xs, length, reverse, unroll: as in `jax.lax.scan`; ``f`` may close over arrays that
        are differentiated.
      **options: ``solver``, ``jacobian``, ``memory_limit``, ``check_jacobian`` of `scan`.

    Returns:
      ``(carry, ys)`` as `jax.lax.scan`.

    Raises:
      TypeError: in forward-mode, by JAX; otherwise what `scan` raises.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
      >>> jax.grad(lambda xs: pb.custom_vjp_scan(step, 0.0, xs)[0])(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    def run(init, xs):
        return scan(f, init, xs, length, reverse, unroll, **options)

    named = options.get("solver"), options.get("jacobian", "auto")
    if left_to_lax(*named, checked_forward(options.get("forward", "exact"))):
        return run(init, xs)

    explicit, closed_over = jax.closure_convert(run, init, xs)
    solved = jax.custom_vjp(explicit)
    # The pullback is a pytree of what it needs, so it can be what is saved.
    solved.defvjp(lambda *args: jax.vjp(explicit, *args), lambda pullback, cts: pullback(cts))
    return solved(init, xs, *closed_over)
