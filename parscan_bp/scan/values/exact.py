"""The values of `jax.lax.scan` itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from parscan_bp.originals import lax_scan
from parscan_bp.scan.values.base import Pass, Values


@dataclasses.dataclass(frozen=True)
class Exact(Values):
    """``forward="exact"``: `jax.lax.scan`'s own loop."""

    by_default = True

    def __repr__(self):
        return repr("exact")

    def of(self, step, *, adjoins):
        return LAX


@dataclasses.dataclass(frozen=True)
class InSteps(Pass):
    """One step after the other.

    Attributes:
      scan: makes them.
      exact: whether it does what `jax.lax.scan` does, bit for bit.
    """

    scan: Callable
    exact: bool = False

    def run(self, loop, args, states):
        return loop.step_by_step(self.scan)(args)


EXACT = Exact()
LAX = InSteps(lax_scan, exact=True)
"""The forward pass of `jax.lax.scan`."""
