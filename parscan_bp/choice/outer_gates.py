"""Whether several gates of a step depend on one outer product."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from parscan_bp.jaxprs.primitive_kinds import SQUASHING
from parscan_bp.jaxprs.read import shape_of

# What gates are made of: their functions, and what divides a joint product among them.
_GATES = SQUASHING | {"sin", "cos", "erf", "split", "slice"}


def has_outer_gates(jaxpr: Jaxpr) -> bool:
    """Whether a product that contracts an axis of size 1 goes to more than one gate.

    So does that of a single input feature with the input weights. XLA makes no product of it, but
    a part of every gate. A step with one function, like that of an Elman RNN, has no such gates.
    """
    products: set[Any] = set()
    gates = 0
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in products for v in eqn.invars):
            gates += eqn.primitive.name in _GATES
            products.update(eqn.outvars)
        elif _is_outer(eqn):
            products.update(eqn.outvars)
    return gates > 1


def _is_outer(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "dot_general":
        return False
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return all(shape_of(eqn.invars[0])[axis] == 1 for axis in contracted)
