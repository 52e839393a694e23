"""Whether a function of arrays of one shape is one of each number, read from its jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.interpret import Interpreter
from parscan_bp.jaxprs.primitive_kinds import PREDICATES, ZERO_DERIVATIVE
from parscan_bp.jaxprs.read import open_jaxpr, shape_of, with_known
from parscan_bp.structure.rules import RULES, axis_maps
from parscan_bp.structure.rules_shape import elementwise, one_to_one


def check_elementwise(name: str, function: Callable, *args: Any) -> Any:
    """Raises where an entry of a result depends on other entries of the arguments than its own.

    By value, whatever has a derivative. Constants are broadcast as they like.

    Args:
      name: of the function.
      function: of pytrees of arrays of one shape.
      args: these arrays, or their types; not empty.

    Returns:
      The types of the results, as the function arranges them.

    Raises:
      ValueError: names the primitive, or the shapes of the results where they are others.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> check_elementwise("f", jax.nn.relu, jnp.ones((2, 3))).shape
      (2, 3)
      >>> check_elementwise("f", jax.nn.softmax, jnp.ones((2, 3)))
      Traceback (most recent call last):
      ValueError: f: reduce_max mixes units; functions of one unit alone are wanted
    """
    (shape,) = {leaf.shape for leaf in jax.tree.leaves(args)}
    closed, results = _traced(function, *args)
    check_alone(name, closed, len(shape))
    leaves = jax.tree.leaves(results)
    if any(leaf.shape != shape for leaf in leaves):
        came = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(f"{name}: got results of shapes {came}; {shape} of each is wanted")
    return results


def check_alone(name: str, closed: ClosedJaxpr, rank: int) -> None:
    """`check_elementwise` of a jaxpr whose inputs are of this rank, but for the shapes."""
    jaxpr = with_known(open_jaxpr(closed), {})  # what no result needs may mix
    own = tuple(range(rank))
    domain = _Places(name, rank)
    for out in domain.run(jaxpr, [own] * len(jaxpr.invars)):
        if out is not None and tuple(axis for axis in out if axis is not None) != own:
            domain.refuse("transpose", max(k for k in own if out[k] != k))


AxisPlaces = tuple[int | None, ...]
"""Per axis of a value, the axis of the function's arguments with which it is elementwise."""


class _Places(Interpreter[AxisPlaces | None]):
    """None: the value depends on no argument. All others have every axis of the arguments once."""

    derivative = False
    prune = False
    bottom = None

    def __init__(self, name: str, rank: int) -> None:
        super().__init__()
        self.name, self.rank = name, rank

    def refuse(self, primitive: str, axis: int) -> NoReturn:
        what = "units" if axis == self.rank - 1 else "samples"
        raise ValueError(
            f"{self.name}: {primitive} mixes {what}; functions of one unit alone are wanted"
        )

    def equation(
        self, eqn: JaxprEqn, ins: list[AxisPlaces | None], live: list[bool]
    ) -> list[AxisPlaces | None]:
        name = kind_of(eqn)
        by_number = name in PREDICATES or name in ZERO_DERIVATIVE
        rows = elementwise(eqn) if by_number else axis_maps(eqn)
        outs = []
        for row, v in zip(rows, eqn.outvars, strict=True):
            out = None
            for value, axes in zip(ins, row, strict=True):
                if value is None or (axes is None and RULES[name] is one_to_one):
                    continue
                # Another operand without derivative, an index or a key, is read all the same.
                axes = (None,) * len(shape_of(v)) if axes is None else axes
                placed = tuple(None if a is None else value[a] for a in axes)
                for axis in reversed(range(self.rank)):
                    if axis not in placed:
                        self.refuse(name, axis)
                out = self.join(out, placed, name)
            outs.append(out)
        return outs

    def join(self, a: AxisPlaces | None, b: AxisPlaces | None, name: str) -> AxisPlaces | None:
        if a is None or b is None or a == b:
            return b if a is None else a
        pairs = zip(a, b, strict=True)
        self.refuse(name, max(k for p in pairs if p[0] != p[1] for k in p if k is not None))

    def unstack(self, xs: AxisPlaces | None) -> AxisPlaces | None:
        if xs is not None and xs[0] is not None:
            self.refuse("scan", xs[0])
        return xs and xs[1:]

    def stack(self, y: AxisPlaces | None, scanned: None) -> AxisPlaces | None:
        return y and (None, *y)


def check_units_alike(name: str, function: Callable, *args: Any) -> Any:
    """Raises where a function does not treat all numbers alike, of which ``args`` are some.

    Args:
      name, function, args: as in `check_elementwise`, with types of single numbers.

    Returns:
      As `check_elementwise`.

    Raises:
      NotImplementedError: if the function closes over arrays, or takes no single numbers.
    """
    wanted = "the fused kernels want functions of one number each; forward='exact' takes others"
    try:
        closed, results = _traced(function, *args)
    except (IndexError, TypeError, ValueError) as error:
        raise NotImplementedError(f"{name}: got {error} of single numbers; {wanted}") from error
    arrays = [getattr(const, "shape", ()) for const in closed.consts]
    arrays = arrays or [leaf.shape for leaf in jax.tree.leaves(results) if leaf.shape != ()]
    if arrays:
        raise NotImplementedError(
            f"{name}: got an array of shape {arrays[0]} beside its arguments; {wanted}"
        )
    return results


def _traced(function: Callable, *args: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function and the types of its results, those with a mesh among them."""
    closed, results = jax.make_jaxpr(function, return_shape=True)(*args)
    return closed, jax.tree.unflatten(jax.tree.structure(results), closed.out_avals)
