"""A traced function of pytrees, and the arguments that it is traced for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from parscan_bp.arguments import described
from parscan_bp.jaxprs.read import walk
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.scan.traces import plan_anew
from parscan_bp.types import Array, PyTree

_WIDE = ("float64", "complex128", "int64", "uint64")


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """A traced function.

    Attributes:
      closed: of the leaves of its arguments.
      out_tree: the structure of its result.
    """

    closed: ClosedJaxpr
    out_tree: Any

    @property
    def obstacle(self) -> str | None:
        """Why its equations cannot be run one by one; ``None`` if they can."""
        if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return None
        avals: Any = (
            v.aval for eqn in walk(self.closed.jaxpr) for v in (*eqn.invars, *eqn.outvars)
        )
        if any(str(getattr(aval, "dtype", "")) in _WIDE for aval in avals):
            return "the function computes with 64 bits, and jax_enable_x64 is off around it"
        return None

    @property
    def extra(self) -> Sequence[Any]:
        """What it closes over."""
        return self.closed.consts

    def __call__(self, leaves: Sequence[Array]) -> PyTree:
        made = jax.tree.unflatten(self.out_tree, evaluate(self.closed, leaves))
        is_kept = lambda v: isinstance(v, _Kept)  # noqa: E731
        return jax.tree.map(lambda v: v.value if is_kept(v) else v, made, is_leaf=is_kept)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Kept:
    """What a function returns beside arrays, as it is."""

    value: Any


class Arguments:
    """The arguments of a call, of which arrays are traced and all else is not."""

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = tuple(k for k, leaf in enumerate(leaves) if _is_array(leaf))
        self.arrays = [leaves[k] for k in places]
        others = [None if k in places else (type(v), v) for k, v in enumerate(leaves)]
        self.how: Hashable = (tree, places, tuple(others))


def call_with(f: Callable, how: Any, arrays: Sequence[Array]) -> PyTree:
    """``f`` of `Arguments`; what it returns beside arrays is kept."""
    tree, places, others = how
    leaves = [None if other is None else other[1] for other in others]
    for k, array in zip(places, arrays, strict=True):
        leaves[k] = array
    args, kwargs = jax.tree.unflatten(tree, leaves)
    return jax.tree.map(lambda v: v if _is_array(v) else _Kept(v), f(*args, **kwargs))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def traced_function(f: Callable, given: Arguments) -> TracedFunction:
    """The program of a call.

    Raises:
      TypeError: if ``f`` is no function.
    """
    if not callable(f):
        raise TypeError(f"f: got {described(f)}; a function is wanted")
    call = functools.partial(call_with, f)
    return plan_anew(call, given.how, (given.arrays,), lambda program: program, TracedFunction)
