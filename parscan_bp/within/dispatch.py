"""What is done in the place of each scan of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from parscan_bp.jaxprs.calls import MADE_AGAIN
from parscan_bp.jaxprs.replay import interpret
from parscan_bp.scan.api import scan
from parscan_bp.within.buffers import Buffer, buffers_of
from parscan_bp.within.outputs import ScanCall, loop_of
from parscan_bp.within.replacement import Replacement
from parscan_bp.within.rewrite import ApplyEquation
from parscan_bp.within.sites import Site


class Dispatch:
    """What is done in the place of each scan of a program.

    Args:
      how: see `Replacement`.
      sites: the scans of the program.
    """

    def __init__(self, how: Replacement, sites: Sequence[Site]):
        self._how = how
        self._sites = {id(site.equation): site for site in sites}
        self._buffers = {id(site.equation): _buffers(how, site) for site in sites}

    def __call__(self, eqn: JaxprEqn, values: Sequence[Any], apply: ApplyEquation) -> Sequence[Any]:
        site = self._sites.get(id(eqn))  # a rule may have scans that are in no program
        values = list(map(typed, eqn.invars, values))
        if site is None or site.stays is not None or not self._how.takes(site):
            return _as_it_was(eqn, values, apply)
        loop = loop_of(eqn, values, self.buffers(site), apply)
        return self.scanned(site, loop, lambda: _as_it_was(eqn, values, apply))

    def scanned(
        self, site: Site, loop: ScanCall, left: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """The results of one scan."""
        try:
            return self.solved(site, loop)
        except NotImplementedError as refused:
            if self._how.otherwise == "lax":
                return left()
            refused.add_note(f"The scan is number {site.index}, at {site.source}.")
            raise

    def solved(self, site: Site, loop: ScanCall) -> list[Any]:
        """The results of one scan by `parscan_bp.scan`."""
        return loop.results(*scan(loop.step, loop.init, loop.xs, **site.how, **self._how.options))

    def buffers(self, site: Site) -> list[Buffer]:
        """The leaves of its carry that become outputs."""
        return self._buffers[id(site.equation)]


def _buffers(how: Replacement, site: Site) -> list[Buffer]:
    return buffers_of(site) if site.stays is None and how.takes(site) else []


def _as_it_was(eqn: JaxprEqn, values: Sequence[Any], apply: ApplyEquation) -> Sequence[Any]:
    """The scan by `jax.lax.scan`, scans within its step being replaced."""
    return MADE_AGAIN["scan"](eqn, values, lambda body, given: interpret(body, given, apply))


def typed(atom: Any, value: Any) -> Any:
    """A number of the program itself, as an array of its type."""
    if not isinstance(atom, Literal):
        return value
    aval: Any = atom.aval
    number = np.asarray(value, aval.dtype)
    weak = jnp.asarray(number.item())  # as JAX takes a number of Python
    return weak if aval.weak_type and weak.dtype == number.dtype else jnp.asarray(number)
