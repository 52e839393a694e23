"""Checks of what the author of a `Gated` cell states: its attributes and its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_int, described
from parscan_bp.cells.elementwise import check_elementwise, check_units_alike

WEIGHTS = "wi", "wh"


class Stated(Protocol):
    """What is read of a `Gated` cell here."""

    input_parts: ClassVar[int]
    states: ClassVar[int]
    past: ClassVar[tuple[int, ...]]

    @property
    def biases(self) -> Any: ...

    @property
    def counts(self) -> tuple[int, int]: ...

    def listed(self, method: str, value: Any) -> Any: ...


def check_attributes(cell: Stated) -> None:
    """Raises unless numbers of parts and leaves, `past` and `biases` are what `Gated` says.

    Raises:
      TypeError, ValueError: names the class, the attribute, what came and what is wanted.
    """
    owner = type(cell).__name__
    for name, least in {"parts": 1, "input_parts": 0, "state_parts": 0, "states": 1}.items():
        as_int(f"{owner}.{name}", getattr(cell, name, None), least)
    _check_past(f"{owner}.past", cell.past, cell.states)
    _check_biases(f"{owner}.biases", cell.biases)


def _check_past(name: str, past: Any, states: int) -> None:
    wanted = f"a tuple of distinct leaves of the carry, all of {[*range(1, states)]} and 0 or not,"
    if not isinstance(past, tuple):
        raise TypeError(f"{name}: got {described(past)}; {wanted} is wanted")
    leaves = {as_int(f"{name}: leaf", leaf, 0) for leaf in past}
    if len(leaves) < len(past) or leaves | {0} != set(range(states)):
        raise ValueError(f"{name}: got {past}; {wanted} is wanted")


def _check_biases(name: str, biases: Any) -> None:
    wanted = (
        "a tuple of two distinct names, of which the second may be None, other than 'wi' and 'wh',"
    )
    names = biases[:1] if isinstance(biases, tuple) and biases[1:] == (None,) else biases
    if not isinstance(biases, tuple) or not all(isinstance(bias, str) for bias in names):
        raise TypeError(f"{name}: got {described(biases)}; {wanted} is wanted")
    if len(biases) != 2 or len({*names, *WEIGHTS}) < len(names) + len(WEIGHTS):
        raise ValueError(f"{name}: got {biases}; {wanted} is wanted")


def check_functions(cell: Stated, leaf: Any) -> None:
    """Raises unless the three functions are elementwise.

    Args:
      cell: the cell.
      leaf: a leaf of its carry, or its type.

    Raises:
      TypeError: if they return no lists of as many arrays as there have to be.
      ValueError: see `check_elementwise`.
    """
    aval = jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf
    _walk(cell, aval, check_elementwise)


def check_for_kernels(cell: Stated) -> None:
    """Raises unless the three functions treat all units alike, as a kernel's tiles want them to.

    Raises:
      NotImplementedError: see `check_units_alike`.
    """
    _walk(cell, jax.ShapeDtypeStruct((), jnp.float32), check_units_alike)


def _walk(cell: Stated, aval: Any, check: Callable) -> None:
    """Checks one function after the other, each of what those before return."""

    def checked(method: str, *args: Any) -> Any:
        function = getattr(cell, method)
        return check(
            f"{type(cell).__name__}.{method}",
            lambda *args: cell.listed(method, function(*args)),
            *args,
        )

    past = [aval] * len(cell.past)
    gates = checked("activate", [aval] * (cell.counts[1] + cell.input_parts))
    new = checked("update", gates, past)
    checked("pull", gates, past, new, new)
