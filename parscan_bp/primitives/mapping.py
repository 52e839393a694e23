"""`jax.vmap` from inside a batching rule, which is told where operands have the mapped axis.

A batching rule of a primitive that stands for a function maps that function. Where its results
then have the axis is the function's own affair: `in_place` leaves them there and says where, so
that nothing is moved or repeated that need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Primitive
from jax.interpreters import ad, batching, mlir

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.types import Array

MappedAxis = int | None
"""Where a value has the mapped axis; ``None`` if it is the same for all entries."""


def vmapped(f: Callable, in_axes: Any, how: Any, out_axes: Any = 0) -> Callable:
    """`jax.vmap` over the axis that a batching rule of JAX describes by ``how``."""
    # A collective in the step may name the mapped axis.
    name = how.name if isinstance(how.name, str) else None
    return jax.vmap(
        f, in_axes, out_axes, axis_name=name, axis_size=how.size, spmd_axis_name=how.spmd_name
    )


def in_place(f: Callable[..., Sequence[Array]], axes: Sequence[MappedAxis], how: Any) -> Callable:
    """``f`` mapped over ``axes``, its results with the mapped axis wherever it comes to stand.

    Args:
      f: function of values that returns a sequence of values.
      axes: where each of its arguments has the mapped axis; at least one has it.
      how: the axis, as JAX describes it to a batching rule.

    Returns:
      Function of the arguments that returns the results, and where each has the axis.
    """
    first = next(k for k, axis in enumerate(axes) if axis is not None)

    def call(*values):
        seen: list[Any] = []

        def look(*values):
            # One operand that is mapped for certain, or the rule would not be asked.
            _look_p.bind(values[first], *f(*values), seen=seen)
            return ()

        vmapped(look, tuple(axes), how, ())(*values)
        ((results, where),) = seen
        return list(results[1:]), tuple(where[1:])

    return call


def moved(value: Array, axis: MappedAxis, to: MappedAxis, how: Any) -> Array:
    """The value with its mapped axis elsewhere: put in, moved, or taken out of equal entries."""
    if axis == to:
        return value
    if to is None:
        return lax.index_in_dim(value, 0, axis or 0, keepdims=False)
    if axis is not None:
        return jnp.moveaxis(value, axis, to)
    shape = list(jnp.shape(value))
    return jnp.broadcast_to(jnp.expand_dims(value, to), (*shape[:to], how.size, *shape[to:]))


def at_front(value: Array, axis: MappedAxis) -> Array:
    """The value with its mapped axis, if it has one, in front."""
    return value if axis is None else jnp.moveaxis(value, axis, 0)


def mapped_alike(values: Sequence[Array], beside: Sequence[Array]) -> list[Array]:
    """The values; under `jax.vmap` all have the mapped axis in front, if any of ``beside`` has it.

    For the results of functions of ``beside``, of which JAX takes one in the place of the other.
    """
    return [_alike_p.bind(v, *beside) for v in values]


def mapped_as(values: Sequence[Array], beside: Sequence[Array], jaxpr: Jaxpr) -> list[Array]:
    """The values; under `jax.vmap` those are not mapped that depend on nothing mapped.

    Args:
      values: results of ``jaxpr``, which may be mapped nevertheless.
      beside: its arguments.
      jaxpr: says what depends on what.
    """
    return _as_p.bind(*values, *beside, jaxpr=jaxpr)


def _first(value, *others):
    return value


def _push_first(primals, tangents):
    (t, *_), (_, *others) = tangents, primals
    pushed = t if isinstance(t, ad.Zero) else _alike_p.bind(t, *others)
    return _alike_p.bind(*primals), pushed


def _map_alike(how, values, axes):
    # There may be more axes that are mapped, around this one.
    return _alike_p.bind(moved(values[0], axes[0], 0, how), *values[1:]), 0


def _results(*values, jaxpr):
    return list(values[: len(jaxpr.outvars)])


def _push_results(primals, tangents, *, jaxpr):
    # A tangent may be mapped where its primal is not.
    return _as_p.bind(*primals, jaxpr=jaxpr), _results(*tangents, jaxpr=jaxpr)


def _map_results(how, values, axes, *, jaxpr):
    count = len(jaxpr.outvars)
    mapped = np.array([axis is not None for axis in axes[count:]], bool)
    depends = (dependencies(jaxpr) & mapped).any(1)
    at = axes[:count]
    to = [axis if own else None for axis, own in zip(at, depends, strict=True)]
    outs = [moved(*each, how) for each in zip(values[:count], at, to, strict=True)]
    return _as_p.bind(*outs, *values[count:], jaxpr=jaxpr), to


_alike_p = Primitive("mapped_alike")
_alike_p.def_impl(_first)
_alike_p.def_abstract_eval(_first)
ad.primitive_jvps[_alike_p] = _push_first
ad.primitive_transposes[_alike_p] = lambda ct, _, *others: [ct, *[None] * len(others)]
batching.fancy_primitive_batchers[_alike_p] = _map_alike
mlir.register_lowering(_alike_p, mlir.lower_fun(_first, False))

_as_p = Primitive("mapped_as")
_as_p.multiple_results = True
_as_p.def_impl(_results)
_as_p.def_abstract_eval(_results)
ad.primitive_jvps[_as_p] = _push_results
batching.fancy_primitive_batchers[_as_p] = _map_results
mlir.register_lowering(_as_p, mlir.lower_fun(_results, True))


def largest_of_mapped(value: Array) -> Array:
    """The largest value of all entries of the axes that `jax.vmap` maps: one for all of them.

    For the condition of a loop. Where that differs from entry to entry, JAX runs the loop until the
    last entry is done, and selects between old and new values of all that it carries. A loop whose
    condition is one for all can keep what is finished as it is at less cost.
    """
    return _largest_p.bind(value)


_largest_p = Primitive("largest_of_mapped")
_largest_p.def_impl(lambda v: v)
_largest_p.def_abstract_eval(lambda aval: aval)
batching.primitive_batchers[_largest_p] = lambda values, axes: (
    largest_of_mapped(jnp.max(values[0], axis=axes[0])),
    None,
)
mlir.register_lowering(_largest_p, mlir.lower_fun(lambda v: v, False))

_look_p = Primitive("look")
_look_p.multiple_results = True
_look_p.def_abstract_eval(lambda *avals, seen: [])


def _look(how, values, axes, *, seen):
    seen.append((values, axes))
    return [], []


batching.fancy_primitive_batchers[_look_p] = _look
