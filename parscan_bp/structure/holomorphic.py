"""Whether a complex step is complex-differentiable, so that its Jacobian is a complex matrix."""

from __future__ import annotations

from jax.extend.core import Jaxpr, Literal

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import HOLOMORPHIC
from parscan_bp.jaxprs.read import is_complex


def is_holomorphic(jaxpr: Jaxpr, count: int) -> bool:
    """Whether the first ``count`` outputs are built by complex-differentiable operations only.

    Conservative: an operation that is not known to be holomorphic counts as not.
    """
    needed = {v for v in jaxpr.outvars[:count] if not isinstance(v, Literal)}
    for eqn in reversed(jaxpr.eqns):
        if not needed.intersection(eqn.outvars):
            continue
        needed.update(v for v in eqn.invars if not isinstance(v, Literal))
        if kind_of(eqn) not in HOLOMORPHIC and any(map(is_complex, eqn.invars)):
            return False
    return True
