"""A record of the plans of the scans that a function runs."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Callable, Iterator

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.scan.plan import PlanOrLeft
from parscan_bp.types import PyTree

_RECORD: contextvars.ContextVar[list[PlanOrLeft] | None] = contextvars.ContextVar(
    "parscan_bp_plan_record", default=None
)
_COUNT = itertools.count()


@contextlib.contextmanager
def recorded_plans() -> Iterator[list[PlanOrLeft]]:
    """The plans of the scans that are called meanwhile, in their order; equal ones once."""
    record: list[PlanOrLeft] = []
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def record_plan(plan: PlanOrLeft) -> PlanOrLeft:
    """The plan, which enters the record, if there is one."""
    record = _RECORD.get()
    if record is not None and not any(plan is one for one in record):
        record.append(plan)
    return plan


def traced_anew(fun: Callable, *args: PyTree) -> tuple[ClosedJaxpr, PyTree]:
    """A function's program, and the shapes of what it returns; all in it is traced anew.

    Of functions of `jax.jit` or `jax.checkpoint` inside, JAX keeps the traces, in which the scans
    have their plans; by the names of axes, too, and here is one that was never there.
    """
    axis = (f"anew {next(_COUNT)}", 1)
    try:
        return jax.make_jaxpr(fun, axis_env=[axis], return_shape=True)(*args)
    except Exception as error:
        if type(error).__name__ != "TraceContextError":  # of flax.nnx, which need not be there
            raise
        raise ValueError(
            "fun: it closes over variables of flax.nnx, or is a module; a trace wants them as an "
            "argument: with graphdef, state = nnx.split(module), lambda state, *args: "
            "nnx.merge(graphdef, state)(*args) and state before the others"
        ) from error
