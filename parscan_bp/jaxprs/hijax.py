"""Equations and values of jax 0.12's `hijax`: what an operation is, and the program that it runs.

An operation that is a `HiPrim` has its rules in one object, and all of them are one primitive,
which holds that object. So are some functions of `jax.numpy`, and, where JAX is set to make them in
this way, calls with a derivative of their own and checkpoints. Here they get the names by which the
table of primitives knows them. What is not JAX's own may do anything, and has none there.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.primitive_kinds import HI_PRIMITIVE, HI_PRIMITIVES


def kind_of(eqn: JaxprEqn) -> str:
    """The name of its primitive, whichever version and setting of JAX has made the equation.

    Example:
      >>> [kind_of(eqn) for eqn in jax.make_jaxpr(jax.nn.relu)(1.0).eqns]
      ['custom_jvp_call']
    """
    operation = operation_of(eqn)
    if operation is None or not type(operation).__module__.startswith("jax."):
        return eqn.primitive.name
    return HI_PRIMITIVES.get(type(operation).__name__, eqn.primitive.name)


def operation_of(eqn: JaxprEqn) -> Any:
    """The `HiPrim` of an equation; ``None`` for other primitives."""
    return eqn.params["_prim"] if eqn.primitive.name == HI_PRIMITIVE else None


def program_of(eqn: JaxprEqn) -> Any:
    """The program of a `HiPrim`, for the operands of its equation."""
    operation = operation_of(eqn)
    traced = getattr(operation, "traced", operation)
    program = getattr(traced, "jaxpr", None)
    if program is not None and len(program.invars) == len(eqn.invars):
        return program
    with eqn.ctx.manager:
        return _expanded.trace(operation, *[v.aval for v in eqn.invars]).jaxpr


@functools.partial(jax.jit, static_argnums=0)
def _expanded(operation: Any, *operands: Any) -> list[Any]:
    return jax.tree.leaves(operation.expand(*jax.tree.unflatten(operation.in_tree, operands)))


def is_hi_type(aval: Any) -> bool:
    """Whether values of this type are no arrays, but of a `HiType`."""
    return getattr(aval, "is_high", False)
