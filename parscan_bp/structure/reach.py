"""Which parts of a scan a derivative reaches: over all steps, to a fixed point.

A carry that nothing makes move has no tangent, and one that nothing reads has no cotangent:
symbolically, as in `jax.lax.scan`. They are left out of the linear system. That is work saved; and
where the derivative of what is left out is not finite (the norm of a zero vector, logged and not
read), a zero times it would be NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.dependence import dependencies


@dataclasses.dataclass(frozen=True, eq=False)
class Reach:
    """Dependencies of a step ``[*consts, *carry, *x] -> [*carry, *y]``, derivatives only.

    Attributes:
      depends: whether an output (rows) has a derivative by an input (columns).
      num_consts: number of consts.
      num_carry: number of carry leaves.
    """

    depends: np.ndarray
    num_consts: int
    num_carry: int

    @classmethod
    def of(cls, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int) -> Reach:
        """Reads them off the step's jaxpr."""
        return cls(dependencies(jaxpr, derivative=True), num_consts, num_carry)

    def forward(
        self, consts: Collection[int], carry: Collection[int], x: Collection[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The carry leaves and outputs that move if these consts, first carries and inputs do."""
        a, b = self.num_consts, self.num_consts + self.num_carry
        moving: np.ndarray = np.zeros(self.depends.shape[1], bool)
        moving[[*consts, *(a + k for k in carry), *(b + k for k in x)]] = True
        while True:
            outs = np.asarray(self.depends[:, moving].any(axis=1))
            found = moving[a:b] | outs[: self.num_carry]
            if (found == moving[a:b]).all():
                return _positions(found), _positions(outs[self.num_carry :])
            moving[a:b] = found

    def backward(
        self, carry: Collection[int], y: Collection[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The consts, carry leaves and inputs that these last carries and outputs depend on."""
        a, b = self.num_consts, self.num_consts + self.num_carry
        read: np.ndarray = np.zeros(self.depends.shape[0], bool)
        read[[*carry, *(self.num_carry + j for j in y)]] = True
        while True:
            ins = np.asarray(self.depends[read].any(axis=0))
            found = read[: self.num_carry] | ins[a:b]
            if (found == read[: self.num_carry]).all():
                return _positions(ins[:a]), _positions(found), _positions(ins[b:])
            read[: self.num_carry] = found

    def components(self, carry: Sequence[int]) -> list[tuple[int, ...]]:
        """These carry leaves in groups that depend on each other, sources first.

        The strongly connected components of the step's dependencies: none of a group depends on a
        later one, over any number of steps.
        """
        a = self.num_consts
        above = self.depends[np.ix_(carry, [a + k for k in carry])] | np.eye(len(carry), dtype=bool)
        for _ in range(len(carry).bit_length()):
            above = above @ above
        alike, order = above & above.T, np.argsort(above.sum(axis=1), kind="stable")
        groups = dict.fromkeys(tuple(np.flatnonzero(alike[k]).tolist()) for k in order)
        return [tuple(carry[k] for k in group) for group in groups]


def _positions(flags: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(flags).tolist())
