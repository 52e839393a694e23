"""A scan as a `jax.custom_vjp`, for those who want reverse-mode and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.primitives.mapping import counted_once, in_front
from parscan_bp.scan.api import left_to_lax, scan
from parscan_bp.scan.values.options import checked_forward
from parscan_bp.trees import replace_at
from parscan_bp.types import PyTree

SHARED: dict[str, Any] = (
    {"generic_batching": True}
    if "generic_batching" in inspect.signature(jax.custom_vjp.defvjp).parameters
    else {}
)
"""Newer versions of JAX ask how outputs are transposed that are the same for all of a batch, and do
as `counted_once`; older ones do not know that there are any."""


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
    and the carry after every step. Forward-mode raises, and so do Hessian-vector products and
    `jax.linear_transpose`; in return no transformation ever sees the rule of `scan`. Outside
    `jax.jit` the step is traced at every call. Under `jax.disable_jit`, without a named solver, it
    is `jax.lax.scan`.

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
    if left_to_lax(*named, checked_forward(options.get("forward", "exact")).by):
        return run(init, xs)
    return by_custom_vjp(run, init, xs)


def by_custom_vjp(run: Callable, *args: PyTree) -> PyTree:
    """``run(*args)`` under a `jax.custom_vjp` whose rule is the pullback of ``run``.

    What ``run`` closes over is differentiated, too. It is traced at every call.
    """
    # All that it closes over, not what is differentiated alone: a rule may be run where the axes
    # that values were mapped over are gone.
    closed, result = jax.make_jaxpr(lambda *args: run(*args), return_shape=True)(*args)

    def explicit(consts, *args):
        made = evaluate(ClosedJaxpr(closed.jaxpr, consts), jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(result), made)

    def forward(*args):
        # The pullback is a pytree of what it needs, so it can be what is saved.
        result, pullback = jax.vjp(explicit, *args)
        return _in_front(result), pullback

    def backward(pullback, cts):
        leaves, tree = jax.tree.flatten(cts)
        floats = [k for k, ct in enumerate(leaves) if ct.dtype != jax.dtypes.float0]
        once = counted_once([leaves[k] for k in floats], jax.tree.leaves(pullback))
        return pullback(jax.tree.unflatten(tree, replace_at(leaves, floats, once)))

    # JAX maps the two apart, and takes their results to have the mapped axis in the same places.
    solved = jax.custom_vjp(lambda *args: _in_front(explicit(*args)))
    solved.defvjp(forward, backward, **SHARED)
    return solved(closed.consts, *args)


def _in_front(tree: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, in_front(leaves))
