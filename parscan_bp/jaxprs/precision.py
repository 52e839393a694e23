"""In which dtype the derivatives of a jaxpr are rounded: the shortest on their way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.interpret import DerivativeInterpreter
from parscan_bp.jaxprs.read import is_inexact, open_jaxpr


def shortest_dtype(jaxpr: Any, ins: Collection[int], outs: Collection[int]) -> np.dtype | None:
    """The dtype with the fewest digits that a derivative of these outputs by these inputs is in.

    Args:
      jaxpr: a Jaxpr or ClosedJaxpr.
      ins, outs: positions.

    Returns:
      The dtype; ``None`` where nothing has a derivative.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = lambda h, x: jnp.tanh(h.astype(jnp.bfloat16)).astype(h.dtype) + x
      >>> jaxpr = jax.make_jaxpr(step)(jnp.ones(2), jnp.ones(2))
      >>> shortest_dtype(jaxpr, [0], [0]), shortest_dtype(jaxpr, [1], [0])
      (dtype(bfloat16), dtype('float32'))
    """
    opened = open_jaxpr(jaxpr)
    given = [_dtype(v) if k in ins else None for k, v in enumerate(opened.invars)]
    made = _Shortest().run(opened, given)
    return _shorter([made[k] for k in outs])


class _Shortest(DerivativeInterpreter[np.dtype | None]):
    bottom = None

    def equation(self, eqn: JaxprEqn, ins, live):
        return [_shorter([*ins, _dtype(v)]) for v in eqn.outvars]

    def join(self, a, b, name):
        return _shorter([a, b])


def _dtype(atom: Any) -> Any:
    return atom.aval.dtype if is_inexact(atom) else None


def _shorter(dtypes: list[Any]) -> Any:
    """The one with the fewest digits of those that are known."""
    return max((d for d in dtypes if d is not None), key=lambda d: jnp.finfo(d).eps, default=None)
