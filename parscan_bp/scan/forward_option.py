"""The option ``forward=``: what its names mean, and what stands beside it."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Hashable
from typing import Any

from parscan_bp import kernels
from parscan_bp.arguments import check_bool, described, options_of
from parscan_bp.forward import Chunks, FixedPoint, Forward, FrozenActivations, Newton
from parscan_bp.forward.base import with_guess
from parscan_bp.forward.evaluate import CERTIFICATES, Certified
from parscan_bp.scan.fused import Fused
from parscan_bp.scan.parallel import Parallel
from parscan_bp.types import PyTree

NAMES: dict[str, Callable[[], Fused | Forward]] = {
    "fused": Fused,
    "chunks": Chunks,
    "newton": Newton,
    "fixed_point": FixedPoint,
    "frozen_activations": FrozenActivations,
}
"""What a name stands for; "exact" is `jax.lax.scan`'s own loop, "auto" this or a method."""


FORWARD_OPTIONS = ("forward", "certify", "tolerance", "fallback")
"""The options of `checked_forward`, as a layer hands them on."""


@dataclasses.dataclass(frozen=True)
class ForwardOption:
    """A checked ``forward=``.

    Attributes:
      by: what makes the values, hashable; ``None`` for `jax.lax.scan`.
      guess: states to begin with, a pytree of arrays; ``None`` where there are none.
      auto: whether a method makes them is still to be chosen; how it would be certified.
    """

    by: Fused | Parallel | None = None
    guess: PyTree = None
    auto: Certified | None = None


def checked_forward(
    forward: str | Fused | Forward,
    certify: str = "estimate",
    tolerance: float | None = None,
    fallback: bool = True,
    report: bool = False,
) -> ForwardOption:
    """The options of the forward pass, as of `parscan_bp.scan`.

    Raises:
      TypeError, ValueError: for an option that is not known, or that says nothing of this forward
        pass.
      NotImplementedError: if the device has no kernels.
    """
    _check_options(certify, tolerance, fallback, report)
    if isinstance(forward, str) and forward == "auto":
        return ForwardOption(auto=Certified(Chunks(), certify, tolerance, fallback))
    chosen = NAMES[forward]() if isinstance(forward, str) and forward in NAMES else forward
    if isinstance(chosen, Forward):
        _check_hashable(chosen)
        guess = chosen.guess
        method = chosen if guess is None else with_guess(chosen, None)
        return ForwardOption(Parallel(Certified(method, certify, tolerance, fallback)), guess)
    if not (chosen == "exact" or isinstance(chosen, Fused)):
        if isinstance(chosen, type) and issubclass(chosen, Forward | Fused):
            name = chosen.__name__
            raise TypeError(f"forward: {name} is a class; {name}() is wanted")
        names = ", ".join(map(repr, ["exact", "auto", *NAMES]))
        raise ValueError(f"forward: got {forward!r}; {names}, Fused() or a Forward is wanted")
    for name, value, default in (
        ("certify", certify, "estimate"),
        ("tolerance", tolerance, None),
        ("fallback", fallback, True),
    ):
        if value != default:
            raise ValueError(
                f"{name}: got {value!r} with forward={forward!r}, whose values are not iterated: "
                "there is nothing to certify"
            )
    return ForwardOption() if chosen == "exact" else ForwardOption(_usable(chosen))


def _check_hashable(method: Any) -> None:
    """Its options are part of what is compiled, but for the guess, which is an argument."""
    for field in options_of(method):
        value = getattr(method, field.name)
        if field.name != "guess" and not isinstance(value, Hashable):
            raise TypeError(
                f"forward: {type(method).__name__}.{field.name}: got {described(value)}; what can "
                "be hashed is wanted, and no array: only a guess is made of these"
            )


def _usable(fused: Any) -> Fused:
    reason = kernels.unusable(fused.interpret)
    if reason is not None:
        raise NotImplementedError(f"forward: {fused!r}: {reason}; forward='exact' runs everywhere")
    return fused


def _check_options(certify, tolerance, fallback, report) -> None:
    if certify not in CERTIFICATES:
        names = " or ".join(map(repr, CERTIFICATES))
        raise ValueError(f"certify: got {certify!r}; {names} is wanted")
    if tolerance is not None:
        real = isinstance(tolerance, numbers.Real) and not isinstance(tolerance, bool)
        if not real:
            raise TypeError(f"tolerance: got {described(tolerance)}; a number is wanted")
        if not 0 < float(tolerance) < math.inf:
            raise ValueError(f"tolerance: got {tolerance}; a number above 0 is wanted")
    check_bool("fallback", fallback)
    if not fallback and not report:
        raise ValueError(
            "fallback: False wants report=True: a trajectory that is not certified would look like "
            "any other"
        )
