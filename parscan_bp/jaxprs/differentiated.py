"""A program as it is where it was differentiated: its values by the rules that were run.

The rule of a `jax.custom_jvp` returns a value beside the tangent. JAX takes it in the place of the
function's, so that the next derivative is that of the rule: a spike whose rule returns
``(x > 0, surrogate * t)`` is a plain comparison from then on, of slope zero. A rule that calls its
own function for the value leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval as pe

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import FOREIGN_CALLS, FORWARD_CALLS
from parscan_bp.jaxprs.read import alone, is_inexact, walk
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.trees import replace_at


def has_rules(jaxpr: Jaxpr) -> bool:
    """Whether there is a call with tangents by a rule of the user's, at any depth."""
    return any(True for _ in _calls(jaxpr))


def _calls(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    return (eqn for eqn in walk(jaxpr) if kind_of(eqn) in FOREIGN_CALLS & FORWARD_CALLS)


def values_after_derivative(closed: ClosedJaxpr, moving: Sequence[int]) -> ClosedJaxpr:
    """The program of the values beside the tangents; the same object where that is the same one.

    Args:
      closed: the program.
      moving: those of its inputs that have tangents.

    Example:
      >>> @jax.custom_jvp
      ... def spike(x):
      ...     return jnp.float32(x > 0)
      >>> _ = spike.defjvp(lambda p, t: (jnp.float32(p[0] > 0), t[0] / (1 + p[0] ** 2)))
      >>> step = jax.make_jaxpr(spike)(1.0)
      >>> [eqn.primitive.name for eqn in values_after_derivative(step, [0]).eqns]
      ['gt', 'convert_element_type']
      >>> step = jax.make_jaxpr(jax.nn.relu)(1.0)
      >>> values_after_derivative(step, [0]) is step
      True
    """
    if not moving or all(map(_calls_itself, _calls(closed.jaxpr))):
        return closed
    later = pushed(closed, moving)
    values = _values(later, closed, moving)
    return closed if _is_same(later, pushed(values, moving)) else values


def slopes_read(
    closed: ClosedJaxpr, moving: Sequence[int], outs: Sequence[int]
) -> tuple[bool, ...]:
    """For each input of a program, whether derivatives of outputs have a derivative by it.

    An input by which the outputs have none may be read there, as a rule's own slope is.

    Args:
      closed: the program.
      moving: by which inputs it is differentiated.
      outs: which outputs.

    Example:
      >>> step = jax.make_jaxpr(lambda w, h, x: w * h + x)(1.0, 1.0, 1.0)
      >>> slopes_read(step, [0, 1, 2], [0])
      (True, True, False)
    """
    n, m = len(closed.out_avals), len(closed.in_avals)
    depends = dependencies(pushed(closed, moving), derivative=True)
    return tuple(map(bool, np.asarray(depends[[n + k for k in outs], :m].any(0))))


def _calls_itself(eqn: JaxprEqn) -> bool:
    """Whether the rule of a call is seen to return the call itself for its value."""
    closed = alone(eqn)
    moving = [k for k, v in enumerate(closed.jaxpr.invars) if is_inexact(v)]
    try:
        later = pushed(closed, moving)
    except Exception:  # of a rule that refuses, and is perhaps not run: nothing is known of it
        return False
    return _is_same(later, pushed(_values(later, closed, moving), moving))


def pushed(closed: ClosedJaxpr, moving: Sequence[int]) -> ClosedJaxpr:
    """``(inputs, tangents of those that move) -> (outputs, their tangents)``."""

    def push(values, tangents):
        run = lambda *floats: evaluate(closed, replace_at(values, moving, floats))  # noqa: E731
        return jax.jvp(run, [values[k] for k in moving], tangents)

    avals = list(closed.in_avals)
    return jax.make_jaxpr(push)(avals, [avals[k] for k in moving])


def _values(later: ClosedJaxpr, closed: ClosedJaxpr, moving: Sequence[int]) -> ClosedJaxpr:
    """What of it makes the outputs."""
    n, m = len(closed.out_avals), len(closed.in_avals)
    wanted = [k < n for k in range(len(later.out_avals))]
    kept = [k < m for k in range(len(later.in_avals))]
    jaxpr, used = pe.dce_jaxpr(later.jaxpr, wanted, instantiate=kept)
    program = ClosedJaxpr(jaxpr, later.consts)
    if used == kept:
        return program
    # Not all that is dead is seen to be, as in a loop; of what is left, no value depends on it.
    dead = [a for a, u, k in zip(later.in_avals, used, kept, strict=True) if u and not k]

    def run(*values):
        return evaluate(program, [*values, *(jnp.zeros(a.shape, a.dtype) for a in dead)])

    return jax.make_jaxpr(run)(*closed.in_avals)


def _is_same(a: ClosedJaxpr, b: ClosedJaxpr) -> bool:
    """Whether two programs read the same, and of the same constants."""
    if len(a.consts) != len(b.consts) or any(map(_differ, a.consts, b.consts)):
        return False
    return str(a.jaxpr) == str(b.jaxpr)


def _differ(a: object, b: object) -> bool:
    return a is not b
