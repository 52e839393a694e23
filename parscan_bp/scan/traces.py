"""The traces of a function, and what was planned for each of them.

A trace depends on much beside the types of the arguments: on settings of JAX, on the mesh, on the
axes that a `jax.vmap` around has named, on how random numbers are made. JAX keeps its traces by all
of that, so plans are kept by the trace: where JAX gives the one that it gave before, nothing has
changed, and where it makes a new one, that is planned anew.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.stage import Staged, to_be_traced, trace_call

MOST = 64
"""Plans that are kept of one function. A step has a few; a function that lives as long as the
program and is called with ever other types would otherwise fill the memory with programs."""


class Traces:
    """The plans for the traces of ``call(how, *args)``; ``how`` is hashable, and not traced.

    Args:
      call: what is traced.
      read: the traced call for its jaxpr and the structure of its results, or ``None`` where there
        is nothing to plan.
    """

    def __init__(self, call: Callable, read: Callable[[ClosedJaxpr, Any], Any] = Staged.of):
        self._call, self._read = call, read
        self._forget()

    def _forget(self):
        # JAX keeps traces as long as the function lives that it was given.
        self._traced = jax.jit(functools.partial(self._call), static_argnums=0)
        self._plans: dict[Any, tuple[Any, Any]] = {}
        self._of_jacobians: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()

    def plan(
        self,
        how: Hashable,
        args: tuple,
        make: Callable[[Any], Any],
        options: tuple,
        jacobian: str | Callable = "auto",
    ) -> Any:
        """``make(traced)`` for the call, or what it made of the same trace before.

        Args:
          how, args: what is called.
          make: plans a traced call, which ``read`` made.
          options: all that ``make`` depends on beside the trace and the Jacobian.
          jacobian: as in `scan`. The plans for a function live no longer than the function.

        Returns:
          The plan; ``None`` if there is nothing to plan in the trace.
        """
        try:
            hash((how, options))
            plans = self._plans_with(jacobian)
        except TypeError:
            return plan_anew(self._call, how, args, make, self._read)
        with to_be_traced():
            traced = self._traced.trace(how, *args)
        closed = traced.jaxpr
        if len(closed.jaxpr.invars) != len(jax.tree.leaves(args)):
            # What the step closes over belongs to a trace around, and was made an argument.
            return plan_anew(self._call, how, args, make, self._read)
        # The trace is held beside its plan, so that no other one can get its id.
        key = (id(closed), options)
        if key in plans:
            return plans[key][1]
        read = self._read(closed, jax.tree.structure(traced.out_info))
        plan = None if read is None else make(read)
        if plan is None or not any(isinstance(v, jax.core.Tracer) for v in plan.extra):
            if len(self) >= MOST:
                self._forget()
                plans = self._plans_with(jacobian)
            plans[key] = closed, plan
        return plan

    def __len__(self):
        return len(self.plans)

    @property
    def plans(self) -> list[Any]:
        """The plans that are kept."""
        kept = (self._plans, *self._of_jacobians.values())
        return [plan for plans in kept for _, plan in plans.values()]

    def _plans_with(self, jacobian):
        if not callable(jacobian):
            return self._plans
        return self._of_jacobians.setdefault(jacobian, {})


def plan_anew(
    call: Callable,
    how: Hashable,
    args: tuple,
    make: Callable[[Any], Any],
    read: Callable[[ClosedJaxpr, Any], Any] = Staged.of,
) -> Any:
    """`Traces.plan` of which nothing is kept."""
    traced = read(*trace_call(functools.partial(call, how), *args))
    return None if traced is None else make(traced)


class TracesOf:
    """The `Traces` of functions, as long as these live.

    Args:
      call_of: what is traced for a function that ``get()`` gives. It holds no function itself.
    """

    def __init__(self, call_of: Callable[[Callable[[], Any]], Callable]):
        self._call_of = call_of
        self._found: weakref.WeakKeyDictionary[Any, Traces] = weakref.WeakKeyDictionary()

    def __call__(self, f: Callable) -> Traces | None:
        """The traces of a function; ``None`` if it cannot be a key."""
        try:
            traces = self._found.get(f)
            if traces is None:
                traces = self._found[f] = Traces(self._call_of(weakref.ref(f)))
        except TypeError:
            return None
        return traces
