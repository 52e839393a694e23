"""The debug check of a scan: what is assumed or stated of its step, at its first steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.linearise.base import Linearisation
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.check import check_linearisation
from parscan_bp.structure import CarryStructure, check_structure

MOST_STEPS = 2
"""Steps that are looked at: two, as operators are multiplied and cotangents summed over steps."""


@dataclasses.dataclass(frozen=True, eq=False)
class JacobianCheck:
    """Compares with random products of the step's own derivative.

    Attributes:
      body: the step.
      hoist: see `Loop`.
      structure: what was found about the Jacobian.
      linearisations: what is assumed of it, or stated, whatever the solver uses of that.
      extra: values that a given Jacobian closes over.
      length, reverse: of the scan.
    """

    body: Body
    hoist: Hoist | None
    structure: CarryStructure
    linearisations: Sequence[Linearisation]
    extra: Sequence[Any]
    length: int
    reverse: bool

    def __call__(self, args: Sequence[Any]) -> None:
        """The check, at the arguments of the traced `lax.scan`.

        Raises:
          ValueError: naming an entry that contradicts what is assumed.
        """
        args = list(args) if self.hoist is None else self.hoist.args(args)
        consts, carry, stacked = self.body.split(args)
        order = (-1, -2) if self.reverse else (0, 1)
        xs = [[v[t] for v in stacked] for t in order[: min(self.length, MOST_STEPS)]]
        structure, key = self.structure, jax.random.key(0)
        if any(linear.diagonal for linear in self.linearisations):
            structure = dataclasses.replace(structure, diagonal=True)
        check_structure(self.body.jaxpr, structure, consts, carry, xs[0], key)
        for linear in self.linearisations:
            check_linearisation(linear, consts, carry, xs, self.extra, key)
