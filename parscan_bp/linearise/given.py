"""What the caller gives as ``jacobian=``, checked."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from parscan_bp.arguments import described
from parscan_bp.linearise.base import Joined
from parscan_bp.linearise.columns import stack_of_operators
from parscan_bp.operators import Operator

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

    def adjoint_operator(self, steps, active=None):
        n, m = len(steps.carry), len(steps.x)

        def one(extra, v):
            return self.jacobian(extra, v[:n], v[n : n + m], v[n + m :])

        varying = [*steps.carry, *steps.x, *steps.new_carry]
        return stack_of_operators(one, list(steps.extra), varying)


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
