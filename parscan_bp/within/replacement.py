"""Which scans of a program are replaced, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.scan.api import checked_solver
from parscan_bp.solvers import Solver
from parscan_bp.within.sites import Site

Only = int | str | Iterable[int | str] | None


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The options of `replace_scans`.

    Attributes:
      solver, otherwise, memory_limit: as there.
      names: ``only`` as numbers and sources of scans; ``None`` for all.
    """

    solver: Solver | None
    otherwise: str
    names: tuple[int | str, ...] | None
    memory_limit: int | MemoryLimit | None

    @classmethod
    def of(
        cls,
        solver: Solver | None,
        otherwise: str,
        only: Only,
        memory_limit: int | MemoryLimit | None,
    ) -> Replacement:
        """The options that a caller gave.

        Raises:
          TypeError, ValueError: if one is none.
        """
        checked_solver(solver, "auto", memory_limit)
        if otherwise not in ("lax", "raise"):
            raise ValueError(f"otherwise: got {otherwise!r}; 'lax' or 'raise' is wanted")
        return cls(solver, otherwise, None if only is None else _names(only), memory_limit)

    @property
    def options(self) -> dict[str, Any]:
        """Those of `scan`."""
        return {"solver": self.solver, "memory_limit": self.memory_limit}

    def takes(self, site: Site) -> bool:
        """Whether the caller has asked for this scan."""
        return self.names is None or site.index in self.names or site.source in self.names

    def check(self, sites: Sequence[Site]) -> None:
        """Raises if ``only`` names a scan that is not there."""
        there = {name for site in sites for name in (site.index, site.source)}
        missing = [name for name in self.names or () if name not in there]
        if missing:
            listed = ", ".join(f"{site.index} at {site.source}" for site in sites) or "no scan"
            raise ValueError(f"only: got {missing[0]!r}; the function has {listed}")


def _names(only: Any) -> tuple[int | str, ...]:
    several = isinstance(only, Iterable) and not isinstance(only, str)
    names = tuple(only) if several else (only,)
    for name in names:
        if isinstance(name, bool) or not isinstance(name, int | str):
            raise TypeError(
                f"only: got {name!r}; the number of a scan or its 'file.py:line' is wanted, as "
                "explain_within prints them, or several of them"
            )
    return names
