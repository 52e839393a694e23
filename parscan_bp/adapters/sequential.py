"""Layers one after the other, stretches of known ones through `chain`; for the layers of Flax."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.chain import chain
from parscan_bp.layers import Layer, as_layer
from parscan_bp.layers.traced import traced_layer
from parscan_bp.report import Report, report_on_values, worst_of
from parscan_bp.scan.custom_vjp import by_custom_vjp
from parscan_bp.solvers import Solver, check_solver
from parscan_bp.types import PyTree

BY_AD = "automatic differentiation"
Known = list[tuple[Layer, PyTree]] | None
"""The layers, with parameters, that something in a sequence is; ``None`` if it is not known."""


# What says that a function looks at values, which a trace does not have.
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def known_function(function: Callable, x: jax.ShapeDtypeStruct) -> Known:
    """What a function of one array is: of those that `as_layer` knows, or by its trace."""
    try:
        return [(as_layer(function), None)]
    except TypeError:
        pass
    try:
        return traced_layer(function, x)
    except _NEEDS_VALUES:
        return None


def apply_layers(
    layers: Sequence[Callable],
    args: tuple,
    kwargs: dict[str, Any],
    *,
    known: Callable[[Callable, jax.ShapeDtypeStruct], Known],
    call: Callable[[int, tuple, dict[str, Any]], Any],
    solver: Solver | None,
    report: bool,
    custom_vjp: bool,
) -> tuple[Any, tuple[str, ...], Report | None]:
    """The value of the layers, how each of them is differentiated, and the report on all.

    Args:
      layers: callables, each on the result of the one before: a tuple is its positional
        arguments, a dict its keywords, as in Flax.
      args, kwargs: what the first one gets.
      known: what a layer is, for an input (batch, *features).
      call: calls layer k the way of Flax.
      solver, report: see `chain`.
      custom_vjp: whether each stretch is one `jax.custom_vjp`.

    Returns:
      The result; for each layer the name of the layer in `parscan_bp.layers` that it is, or
      `BY_AD`; and with ``report`` the worst of the stretches' reports.
    """
    check_solver(solver, "ragged")
    stretch: list[tuple[Layer, PyTree]] = []
    reports: list[Report] = []
    how, output = [], None

    def settled(output):
        """The value of the stretch that began at ``output``."""
        if not stretch:
            return output
        own, params = zip(*stretch, strict=True)
        stretch.clear()
        run = functools.partial(chain, own, solver=solver, report=report)
        args = params, output
        made = by_custom_vjp(run, *args) if custom_vjp else run(*args)
        if not report:
            return made
        output, told = made
        reports.append(told)
        return output

    for k, layer in enumerate(layers):
        if not stretch:
            args, kwargs = (args, kwargs) if k == 0 else _arguments(output)
            x = _batch_of_one_array(args, kwargs)
        found = None if x is None else known(layer, x)
        if found is None:
            args, kwargs = ((settled(output),), {}) if stretch else (args, kwargs)
            output = call(k, args, kwargs)
            how.append(BY_AD)
            continue
        output = output if stretch else args[0]
        for own, params in found:
            x = jax.eval_shape(own.apply, params, x)
        stretch += found
        how.append(", ".join(type(own).__name__ for own, _ in found) or "the identity")
    output = settled(output)
    told = worst_of([*reports, report_on_values(output)]) if report else None
    return output, tuple(how), told


def takes(layer: Any, names: Collection[str]) -> bool:
    """Whether something in a sequence takes one of the keywords."""
    if not names or not callable(layer):
        return False
    try:
        parameters = inspect.signature(layer).parameters
    except ValueError:  # a built-in function, of which that is not known
        return True
    return any(p.name in names or p.kind is p.VAR_KEYWORD for p in parameters.values())


def _batch_of_one_array(args, kwargs) -> jax.ShapeDtypeStruct | None:
    """The shape of the only argument, if `chain` takes such an input."""
    if len(args) != 1 or kwargs or not hasattr(args[0], "shape"):
        return None
    aval = jax.typeof(args[0])
    fits = aval.ndim >= 2 and jnp.issubdtype(aval.dtype, jnp.floating)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype) if fits else None


def _arguments(output) -> tuple[tuple, dict[str, Any]]:
    if isinstance(output, tuple):
        return output, {}
    if isinstance(output, dict):
        return (), output
    return (output,), {}
