"""What the caller gives as ``jacobian=``, checked."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.arguments import described
from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.base import Joined
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.columns import stack_of_operators
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.operators import Operator
from parscan_bp.system import broadcasts

JACOBIANS = ("auto", "dense", "diagonal")
"""Names that ``jacobian=`` takes, besides a function."""


@dataclasses.dataclass(frozen=True)
class Given(Joined):
    """A Jacobian that the caller states.

    Attributes:
      jacobian: ``(extra, carry leaves, x leaves, new carry leaves) -> Operator`` for one
        step, acting on the joined carry.
    """

    kind = "analytic"

    jacobian: Callable[..., Operator]

    @classmethod
    def of(cls, body: Body, trees: Any, jacobian: Callable) -> tuple[Given, Sequence[Any]]:
        """A function as a linearisation, and the values that it closes over, which are told apart.

        Args:
          body: the step.
          trees: pytree structures of the parameters, the carry and the inputs.
          jacobian: ``(carry, x, new_carry) -> operator``.

        Raises:
          ValueError: if its operator does not fit the carry.
        """
        _, carry_tree, x_tree = trees
        if carry_tree.num_leaves != body.num_carry:
            raise ValueError(
                "jacobian: the step never changes some leaf of the carry, so it has no Jacobian; "
                "close over that leaf instead of carrying it"
            )
        carry = jax.tree.unflatten(carry_tree, _structs(body.carry_avals))
        x = jax.tree.unflatten(x_tree, _structs(body.x_avals))
        closed, shape = jax.make_jaxpr(jacobian, return_shape=True)(carry, x, carry)
        layout = _layout_of(body, shape)
        tree = jax.tree.structure(shape)

        def call(extra, carry, x, new_carry):
            program = ClosedJaxpr(closed.jaxpr, list(extra))
            return jax.tree.unflatten(tree, evaluate(program, [*carry, *x, *new_carry]))

        return cls(body, layout, call), tuple(closed.consts)

    def adjoint_operator(self, steps, active=None):
        n, m = len(steps.carry), len(steps.x)

        def one(extra, v):
            return self.jacobian(extra, v[:n], v[n : n + m], v[n + m :])

        varying = [*steps.carry, *steps.x, *steps.new_carry]
        return stack_of_operators(one, list(steps.extra), varying)


def _structs(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]


def _layout_of(body: Body, operator: Any) -> CarryLayout:
    """The layout of the carry with the batch axes of a given operator."""
    batch = batch_axes_given(operator)
    rank = len(batch)
    shapes = tuple(body.carry_avals[k].shape for k in body.float_carry)
    layout = body.layout(tuple(tuple(range(rank)) for _ in shapes))
    size = sum(layout.features) if all(len(s) >= rank for s in shapes) else None
    if size is None or tuple(operator.shape) != (size, size):
        raise ValueError(
            f"jacobian: the operator is {operator.shape[0]}x{operator.shape[1]} with batch axes "
            f"{batch}; for carry leaves of shapes {shapes} the transposed Jacobian "
            f"with those batch axes is {size}x{size}"
        )
    own = {s[:rank] for s in shapes}
    if len(own) > 1 or any(not broadcasts(batch, to=b) for b in own):
        raise ValueError(
            f"jacobian: the operator has batch axes {batch}; carry leaves of shapes {shapes} want "
            "the axes that lead in all of them, or 1 for one that is shared along it"
        )
    return layout


def check_jacobian_argument(jacobian: Any) -> None:
    """The check of ``jacobian=``: a name, or a function of three arguments.

    Raises:
      ValueError: for another name or object.
      TypeError: for a function that cannot be called with ``(carry, x, new_carry)``.
    """
    if not callable(jacobian):
        if jacobian not in JACOBIANS:
            names = ", ".join(map(repr, JACOBIANS))
            raise ValueError(f"jacobian: got {jacobian!r}; {names} or a function is wanted")
        return
    try:
        signature = inspect.signature(jacobian)
    except ValueError:  # a built-in function, which does not tell
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"jacobian: got {described(jacobian)} of arguments {signature}; a function "
            "(carry, x, new_carry) -> operator is wanted"
        ) from None


def batch_axes_given(operator: Any) -> tuple[int, ...]:
    """The batch axes of what a function given as ``jacobian=`` returned.

    Raises:
      TypeError: if it is no operator.
      ValueError: if it is not well-formed.
    """
    if not isinstance(operator, Operator):
        raise TypeError(
            f"jacobian: the function returned {type(operator).__name__}; an operator of "
            "parscan_bp.operators is wanted, such as Dense(matrix) or Diagonal(vector)"
        )
    try:
        return operator.stack_shape
    except (TypeError, ValueError) as error:
        raise ValueError(f"jacobian: the function returned no operator: {error}") from None
