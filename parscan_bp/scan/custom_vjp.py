"""A scan as a `jax.custom_vjp`, for those who want reverse-mode and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.primitives.mapping import mapped_alike, mapped_as
from parscan_bp.scan.api import left_to_lax, scan
from parscan_bp.scan.values.options import checked_forward
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
    and the carry after every step. Forward-mode raises, and so do Hessian-vector products and
    `jax.linear_transpose`; in return no transformation ever sees the rule of `scan`. Outside
    `jax.jit` the step is traced at every call. Under `jax.disable_jit`, without a named solver, it
    is `jax.lax.scan`.

    Args:
      f, init, xs, length, reverse, unroll: as in `jax.lax.scan`; ``f`` may close over arrays that
        are differentiated.
      **options: the other arguments of `scan`.

    Returns:
      ``(carry, ys)`` as `jax.lax.scan`, and the report where one is asked for.

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
    closed, shape = jax.make_jaxpr(lambda *args: run(*args), return_shape=True)(*args)
    jaxpr, of = closed.jaxpr, jax.tree.structure(shape)
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    explicit = functools.partial(evaluate, ClosedJaxpr(jaxpr, ()))

    # JAX maps the function and its rule apart, and takes results to have the mapped axis in the
    # same places. A cotangent of one that has none would count once for each entry: so all have it
    # in here, and not all of them outside.
    def forward(values):
        # The pullback is a pytree of what it needs, so it can be what is saved.
        results, pullback = jax.vjp(explicit, values)
        return mapped_alike(results, values), pullback

    solved = jax.custom_vjp(lambda values: mapped_alike(explicit(values), values))
    solved.defvjp(forward, lambda pullback, cts: pullback(cts))
    values = [*closed.consts, *jax.tree.leaves(args)]
    return jax.tree.unflatten(of, mapped_as(solved(values), values, jaxpr))
