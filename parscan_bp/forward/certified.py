"""What is asked of the values of a scan that `jax.lax.scan` does not make itself."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import TypeVar

from parscan_bp.arguments import as_written, check_bool, described

CertifiedMethod = TypeVar("CertifiedMethod", bound="Certified")

CERTIFICATES = ("estimate", "bound")
"""What `Certified` may ask for."""


@dataclasses.dataclass(frozen=True, repr=False)
class Certified:
    """What is asked of values that `jax.lax.scan` does not make itself.

    Args:
      certify: "estimate" or "bound": an estimate of the error by linear solves, or a proved bound
        by Jacobians and their products, which is for carries of a few numbers.
      tolerance: the error that is allowed, together with what rounding alone may do to any
        evaluation, relative to 1 + the largest magnitude of a carry; ``None`` is half of its
        digits, 3e-4 in float32 and 1e-8 in float64. What a method leaves is mostly far less.
      fallback: whether `jax.lax.scan` takes over where the error may be larger, or was not to be
        told; under `jax.vmap` it runs if any entry wants it. Otherwise the values are the method's,
        and the report, which has to be asked for, says so.

    Raises:
      TypeError, ValueError: if an option is none such.
    """

    _: dataclasses.KW_ONLY
    certify: str = "estimate"
    tolerance: float | None = None
    fallback: bool = True

    def __post_init__(self):
        if self.certify not in CERTIFICATES:
            names = " or ".join(map(repr, CERTIFICATES))
            raise ValueError(f"certify: got {self.certify!r}; {names} is wanted")
        if self.tolerance is not None:
            is_bool = isinstance(self.tolerance, bool)
            if is_bool or not isinstance(self.tolerance, numbers.Real):
                raise TypeError(f"tolerance: got {described(self.tolerance)}; a number is wanted")
            if not 0 < float(self.tolerance) < math.inf:
                raise ValueError(
                    f"tolerance: got {self.tolerance}; a finite number above 0 is wanted"
                )
        check_bool("fallback", self.fallback)

    def __repr__(self) -> str:
        return as_written(self)

    def certifying(self, method: CertifiedMethod) -> CertifiedMethod:
        """A method with what is asked for here."""
        names = [field.name for field in dataclasses.fields(Certified)]
        return dataclasses.replace(method, **{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True, repr=False)
class Auto(Certified):
    """``forward="auto"`` with options: a method is allowed, and `jax.lax.scan` among them.

    Args:
      certify, tolerance, fallback: of a method that is chosen; see `Certified`.

    Raises:
      TypeError, ValueError: if an option is none such.

    Example:
      >>> from parscan_bp.forward import Auto
      >>> Auto(tolerance=1e-6)
      Auto(tolerance=1e-06)
    """
