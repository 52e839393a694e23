"""Tracing a loop of `jax.lax`: its body as a jaxpr, its mistakes reported by JAX itself.

The call is traced by `jax.lax.scan` or `while_loop`, not by a copy of their front ends. Promotion
of weak types, hoisting of closed-over values, loop-invariant carries, every check and every
error message are therefore those of the installed version.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from parscan_bp.jaxprs.obstacles import hi_type, symbolic_size
from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.jaxprs.replay import bind
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Staged:
    """A traced call of `lax.scan`, or of another loop.

    Attributes:
      outer: jaxpr of the call: a few equations (promotions), one of which is the loop.
      index: position of the loop among the equations.
      consts: values that the outer jaxpr closes over.
      out_tree: pytree structure of its result, ``(carry, ys)`` of a scan.
    """

    outer: Jaxpr
    index: int
    consts: Sequence[Any]
    out_tree: Any

    @classmethod
    def of(cls, closed: ClosedJaxpr, out_tree: Any, loop: str = "scan") -> Staged | None:
        """A traced call, whose last such loop is the one to differentiate; ``None`` without one."""
        loops = [k for k, e in enumerate(closed.jaxpr.eqns) if e.primitive.name == loop]
        return cls(closed.jaxpr, loops[-1], closed.consts, out_tree) if loops else None

    @property
    def equation(self) -> JaxprEqn:
        return self.outer.eqns[self.index]

    @property
    def _avals(self) -> list[Any]:
        """The types of what the loop takes and makes."""
        return [v.aval for v in (*self.equation.invars, *self.equation.outvars)]

    @property
    def symbolic_size(self) -> str | None:
        """See `obstacles.symbolic_size`."""
        length = self.equation.params.get("length", 0)  # a while loop has none
        return symbolic_size(self._avals, length)

    @property
    def hi_type(self) -> str | None:
        """See `obstacles.hi_type`."""
        return hi_type(self._avals)

    @property
    def body(self) -> ClosedJaxpr:
        """(consts, carry, x) -> (carry, y), flat."""
        return self.equation.params["jaxpr"]

    def const_positions(self, variables: Sequence[Any]) -> tuple[int | None, ...]:
        """Which const of the scan each variable of the outer jaxpr is; ``None`` for no const."""
        count, _ = scan_counts(self.equation)
        position = {v: k for k, v in enumerate(self.equation.invars[:count])}
        return tuple(None if isinstance(v, Literal) else position.get(v) for v in variables)

    def operands(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the loop's equation, for those of the call."""
        variables = (*self.outer.constvars, *self.outer.invars)
        given = zip(variables, (*self.consts, *args), strict=True)
        env = {v: as_typed_array(v, value) for v, value in given}
        read = lambda v: as_typed_array(v, v.val) if isinstance(v, Literal) else env[v]  # noqa: E731
        for eqn in self.outer.eqns[: self.index]:
            env.update(zip(eqn.outvars, bind(eqn, list(map(read, eqn.invars))), strict=True))
        return list(map(read, self.equation.invars))

    def run(self, args: Sequence[Array], loop: Callable[[list[Array]], Sequence[Array]]) -> PyTree:
        """Evaluates the call with ``loop`` in place of the loop's equation."""
        variables = (*self.outer.constvars, *self.outer.invars)
        given = dict(zip(variables, (*self.consts, *args), strict=True))
        env = {v: as_typed_array(v, value) for v, value in given.items()}

        def read(v):
            return as_typed_array(v, v.val) if isinstance(v, Literal) else env[v]

        def result(v):
            return as_result(v, v.val if isinstance(v, Literal) else given.get(v, env[v]))

        for k, eqn in enumerate(self.outer.eqns):
            values = [read(v) for v in eqn.invars]
            out = loop(values) if k == self.index else bind(eqn, values)
            env.update(zip(eqn.outvars, out, strict=True))
        return jax.tree.unflatten(self.out_tree, [result(v) for v in self.outer.outvars])


def as_typed_array(variable: Any, value: Any) -> Any:
    """A Python scalar as an array of the type it was traced with; anything else as it is."""
    return value if hasattr(value, "shape") else np.asarray(value, variable.aval.dtype)


NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)
"""What JAX takes for an array, and is none."""


def as_result(variable: Any, value: Any) -> Array:
    """A value that is returned as it was given; what is no array of JAX is copied into one.

    A NumPy array is the caller's own, who may write to it afterwards.
    """
    if not isinstance(value, NUMBERS):
        return value
    # A Python scalar keeps its weak type.
    return jnp.array(value, variable.aval.dtype if hasattr(value, "dtype") else None)


def copied(tree: PyTree) -> PyTree:
    """Arguments of `lax.scan`, which may hand them on, as arrays of JAX."""
    return jax.tree.map(lambda v: jnp.array(v) if isinstance(v, NUMBERS) else v, tree)


def trace_call(call: Callable, *args: PyTree) -> tuple[ClosedJaxpr, Any]:
    """The program of ``call(*args)``, and the structure of its result.

    Raises:
      Whatever ``call`` raises.
    """
    with to_be_traced():
        closed, out_shape = jax.make_jaxpr(call, return_shape=True)(*args)
    return closed, jax.tree.structure(out_shape)


NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors which say that a function looks at values, which a trace does not have."""


def is_jit_disabled() -> bool:
    """Whether `jax.disable_jit` is on."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]


@contextlib.contextmanager
def to_be_traced() -> Iterator[None]:
    """Tracing also under `jax.disable_jit`: steps that Python runs leave no body to linearise."""
    if not is_jit_disabled():
        yield
        return
    try:
        with jax.disable_jit(False):
            yield
    except NEEDS_VALUES as error:
        error.add_note(
            "Also under jax.disable_jit, a solver that was named, a Jacobian that was given and a "
            "fused kernel want a step that can be traced; solver=None alone runs the steps as "
            "jax.lax.scan does."
        )
        raise
