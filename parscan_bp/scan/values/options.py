"""The option ``forward=``: what its names mean, and what stands beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

from parscan_bp.arguments import described, options_of
from parscan_bp.forward import Auto, Chunks, FixedPoint, Forward, FrozenActivations, Newton
from parscan_bp.forward.base import with_guess
from parscan_bp.forward.certified import Certified
from parscan_bp.scan.values.base import Values
from parscan_bp.scan.values.exact import EXACT
from parscan_bp.scan.values.kernels import Fused
from parscan_bp.scan.values.method import Method
from parscan_bp.solvers import Solver
from parscan_bp.types import PyTree

NAMES: dict[str, Callable[[], Fused | Forward | Auto]] = {
    "auto": Auto,
    "fused": Fused,
    "chunks": Chunks,
    "newton": Newton,
    "fixed_point": FixedPoint,
    "frozen_activations": FrozenActivations,
}
"""What a name stands for; "exact" is `jax.lax.scan`'s own loop."""


@dataclasses.dataclass(frozen=True)
class ForwardOption:
    """A checked ``forward=``.

    Attributes:
      by: whence the values come.
      guess: states to begin with, a pytree of arrays; ``None`` where there are none.
      auto: whether a method makes them is still to be chosen; what is asked of it.
    """

    by: Values = EXACT
    guess: PyTree = None
    auto: Auto | None = None


def checked_forward(forward: str | Fused | Forward | Auto, report: bool = False) -> ForwardOption:
    """The option of the forward pass, as of `parscan_bp.scan`.

    Raises:
      TypeError, ValueError: for one that is not known, or whose values want a report that is not
        asked for.
    """
    chosen = NAMES[forward]() if isinstance(forward, str) and forward in NAMES else forward
    if isinstance(chosen, Forward | Auto):
        _check_report(chosen, report)
    if isinstance(chosen, Auto):
        return ForwardOption(auto=chosen)
    if isinstance(chosen, Forward):
        _check_hashable(chosen)
        guess = chosen.guess
        return ForwardOption(Method(chosen if guess is None else with_guess(chosen, None)), guess)
    if isinstance(chosen, Fused):
        return ForwardOption(chosen.here())
    if isinstance(chosen, str) and chosen == "exact":
        return ForwardOption()
    if isinstance(chosen, type) and issubclass(chosen, Forward | Fused | Auto):
        name = chosen.__name__
        raise TypeError(f"forward: {name} is a class; {name}() is wanted")
    names = ", ".join(map(repr, ["exact", *NAMES]))
    solver = ", a solver, which solver= takes" if isinstance(forward, Solver) else ""
    raise ValueError(f"forward: got {forward!r}{solver}; {names}, Fused() or a Forward is wanted")


def _check_hashable(method: Any) -> None:
    """Its options are part of what is compiled, but for the guess, which is an argument."""
    for field in options_of(method):
        value = getattr(method, field.name)
        if field.name != "guess" and not isinstance(value, Hashable):
            raise TypeError(
                f"forward: {type(method).__name__}.{field.name}: got {described(value)}; what can "
                "be hashed is wanted, and no array: only a guess is made of these"
            )


def _check_report(how: Certified, report: bool) -> None:
    if not how.fallback and not report:
        raise ValueError(
            "fallback: False wants report=True: a trajectory that is not certified would look like "
            "any other"
        )
