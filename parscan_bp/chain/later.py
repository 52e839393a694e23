"""The activations of a stack beside their tangents: by the rules that were run.

A rule of a `jax.custom_jvp` may return a value that is no call of its function, and the next
derivative is that of the value, see `values_after_derivative`. No layer has an operator for it: of
such a stack the activations are a plain program from then on, with JAX's own derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.differentiated import values_after_derivative
from parscan_bp.jaxprs.read import differentiable
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.layers import Layer
from parscan_bp.types import Array, PyTree

Activations = Callable[[Sequence[PyTree], Array], list[Array]]


def all_that_move(params: Sequence[PyTree]) -> tuple[tuple[int, ...], ...]:
    """For each layer the positions of its leaves that may be differentiated."""
    types = (list(map(jax.typeof, jax.tree.leaves(own))) for own in params)
    return tuple(map(differentiable, types))


def activations_beside(
    layers: Sequence[Layer],
    params: Sequence[PyTree],
    x: Any,
    leaves: Sequence[Sequence[int]],
    x_moves: bool,
) -> Activations | None:
    """What makes [x_0, ..., x_n] beside their tangents; ``None`` if the layers do.

    Args:
      layers: the layers.
      params, x: their arguments, or the types of these.
      leaves: for each layer the positions of the leaves that are differentiated.
      x_moves: whether the input is.
    """
    programs: list[ClosedJaxpr] = []
    own = True
    for layer, given, moving in zip(layers, params, leaves, strict=True):
        closed = jax.make_jaxpr(layer.apply)(given, x)
        n = len(closed.in_avals)
        later = _later(closed, [*moving, *([n - 1] if x_moves else [])])
        programs.append(later)
        own = own and later is closed
        (x,), x_moves = closed.out_avals, x_moves or bool(moving)
    return None if own else lambda params, x: _run(programs, params, x)


def _later(closed: ClosedJaxpr, moving: Sequence[int]) -> ClosedJaxpr:
    try:
        return values_after_derivative(closed, moving)
    except TypeError:  # a function with a VJP of its own has no tangents, nor second derivatives
        return closed


def _run(programs: Sequence[ClosedJaxpr], params: Sequence[PyTree], x: Array) -> list[Array]:
    xs = [x]
    for program, own in zip(programs, params, strict=True):
        xs += evaluate(program, [*jax.tree.leaves(own), xs[-1]])
    return xs
