"""Which programs are known to commute with `jax.vmap`, and how those are mapped that are not.

A solver linearises many steps at once, as one batch. That is right where every step of the batch
gives what it gives by itself. JAX's own primitives do, one by one as `BATCHED` has them. Of another
library's nobody knows: `jax.vmap` may hand them the whole batch, of which they tell whether any
entry is negative, or they may refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive

from parscan_bp.jaxprs.differentiated import pushed
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import (
    BATCHED,
    CALLBACKS,
    DRAWS,
    FOREIGN_CALLS,
)
from parscan_bp.jaxprs.read import alone, differentiable, walk
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.trees import first_of, replace_at
from parscan_bp.types import PyTree

ORDERS = 3
"""Derivatives of which the rules of a program's own are read: of a gradient's derivatives, too."""

NOT_KNOWN = "is not known to commute with jax.vmap: it may answer for a whole batch of steps"
"""What is wrong with a primitive that is `unbatchable`."""

_PUBLIC = {p.name: p for p in vars(lax).values() if isinstance(p, Primitive)}


def unbatchable(program: ClosedJaxpr, orders: int = ORDERS) -> str | None:
    """A primitive in a program, or in its derivatives, not known to commute with `jax.vmap`.

    Looked for at every depth: in calls, branches and loops, and in what a rule of one's own
    (`jax.custom_jvp`, `jax.custom_vjp`) makes, and that rule's derivatives.

    Args:
      program: the program.
      orders: of how many derivatives; 0 for a program that is run as it is.

    Returns:
      Its name; ``None`` if there is none.

    Example:
      >>> f = jax.custom_batching.sequential_vmap(lambda x: 2 * x)
      >>> unbatchable(jax.make_jaxpr(f)(1.0)), unbatchable(jax.make_jaxpr(jax.numpy.sin)(1.0))
      ('custom_vmap_call', None)
    """
    for eqn in walk(program.jaxpr):
        found = _why(eqn)
        if found is None and orders and kind_of(eqn) in FOREIGN_CALLS:
            try:
                rule = _rule(alone(eqn), reverse=kind_of(eqn) == "custom_vjp_call")
            except Exception:  # whatever it is, nothing is known of what the rule does
                return kind_of(eqn)
            found = unbatchable(rule, orders - 1)
        if found is not None:
            return found
    return None


def mapped(f: Callable, in_axes: Any = 0, *, in_turn: bool) -> Callable:
    """``f`` of every entry of the leading axes of its arguments.

    Args:
      f: function of pytrees.
      in_axes: as of `jax.vmap`, each 0 or ``None``.
      in_turn: whether entries are taken one after the other, not as one batch.

    Example:
      >>> mapped(jax.numpy.sum, in_turn=True)(jax.numpy.ones((2, 3))).tolist()
      [3.0, 3.0]
    """
    return _in_turn(f, in_axes) if in_turn else jax.vmap(f, in_axes)


def batched(f: Callable) -> Callable:
    """``f`` of every entry of the leading axes of its arguments: as a batch, if that is known to
    commute with it; it is traced once more to see."""

    def call(*stacked: PyTree) -> PyTree:
        program = jax.make_jaxpr(f)(*first_of(stacked))
        return mapped(f, in_turn=unbatchable(program) is not None)(*stacked)

    return call


def _in_turn(f: Callable, in_axes: Any) -> Callable:
    def call(*args: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(args)
        spread = (in_axes,) * len(args) if in_axes == 0 else in_axes
        axes = jax.tree.leaves(jax.tree.broadcast(spread, args, is_leaf=_is_none), is_leaf=_is_none)

        def one(moving):
            each = iter(moving)
            pairs = zip(leaves, axes, strict=True)
            return f(*jax.tree.unflatten(tree, [a if k is None else next(each) for a, k in pairs]))

        return lax.map(one, [a for a, k in zip(leaves, axes, strict=True) if k is not None])

    return call


def _is_none(value: Any) -> bool:
    return value is None


def _why(eqn: JaxprEqn) -> str | None:
    """The name of a primitive that is not known to commute."""
    name = kind_of(eqn)
    if name in CALLBACKS:
        one_by_one = str(eqn.params.get("vmap_method")).startswith("sequential")
        return None if one_by_one else name
    if name in DRAWS:
        avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        keys = [str(aval.dtype) for aval in avals]
        other = [key for key in keys if key.startswith("key<") and key != "key<fry>"]
        return f"{name} of {other[0]}" if other else None
    namesake = _PUBLIC.get(eqn.primitive.name, eqn.primitive) is not eqn.primitive
    return name if namesake or name not in BATCHED else None


def _rule(call: ClosedJaxpr, *, reverse: bool) -> ClosedJaxpr:
    """What the rule of a call makes: its tangents, or its cotangents."""
    ins, outs = call.in_avals, call.out_avals
    moving = differentiable(ins)
    if not reverse:
        return pushed(call, moving)
    wanted = differentiable(outs)

    def pull(values, cotangents):
        def of_moving(*floats):
            made = evaluate(call, replace_at(values, moving, floats))
            return [made[k] for k in wanted]

        return jax.vjp(of_moving, *(values[k] for k in moving))[1](cotangents)

    return jax.make_jaxpr(pull)(list(ins), [outs[k] for k in wanted])
