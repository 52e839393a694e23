"""``forward=`` a method: the values of a scan by a parallel evaluation that is certified."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.forward import ForwardReport
from parscan_bp.forward.evaluate import Certified, LoopFunctions, evaluate
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody
from parscan_bp.scan.trajectory import run_with_trajectory
from parscan_bp.structure import unsupported
from parscan_bp.types import Array

WANTED = (jnp.float32, jnp.float64)
"""Dtypes of carries. Short ones have a rounding floor of the size of what is to be told."""


@dataclasses.dataclass(frozen=True)
class Parallel:
    """What ``forward=`` a method of `parscan_bp.forward` means.

    Attributes:
      how: the method and its certificate; the guess is an argument of the call.
    """

    how: Certified

    def __repr__(self):
        return repr(self.how.method)

    def check(self, staged: Staged, body: Body) -> None:
        """Raises `NotImplementedError` if the method and its certificate cannot take the step."""
        why = staged.symbolic_size
        reasons = unsupported(body.jaxpr)
        if reasons:
            why = f"the step contains {reasons[0].primitive}: {reasons[0].message}"
        other = [a for a in body.carry_avals if a.dtype not in WANTED]
        if other:
            why = (
                f"the carry has a leaf of {other[0].dtype}, and a certificate takes float32 and "
                "float64: what counts or draws may be an input, made of jnp.arange or split keys"
            )
        if why is not None:
            raise NotImplementedError(f"forward={self!r}: {why}; forward='exact' takes any step")

    def loop(
        self, body: Body, of: CellBody | None, params: dict[str, Any], *, adjoins: bool
    ) -> ParallelLoop:
        """The forward pass of a scan with these parameters; it has no adjoint of its own."""
        return ParallelLoop(body, self.how, params["length"], params["reverse"], params["unroll"])


@dataclasses.dataclass(frozen=True, eq=False)
class ParallelLoop:
    """The values of a scan by a method.

    Attributes:
      body: the scan body.
      how: the method and its certificate.
      length, reverse, unroll: the scan.
      kernels: none; the adjoint is a solver's.
    """

    body: Body
    how: Certified
    length: int
    reverse: bool
    unroll: int
    kernels: ClassVar[None] = None

    def run(
        self,
        consts: Sequence[Array],
        init: Sequence[Array],
        xs: Sequence[Array],
        guess: Sequence[Array],
    ) -> tuple[list[Array], list[Array], list[Array], ForwardReport]:
        """``(carry, ys, after, told)``, the first three as of `run_with_trajectory`."""
        functions = LoopFunctions(self._step, self._sequential)
        args = list(consts), list(init), self._turned(xs)
        start = self._turned(guess) or None
        after, own, told = evaluate(self.how, functions, *args, self.length, start)
        carry, after, own = [a[-1] for a in after], self._turned(after), self._turned(own)
        ys = {j: after[k] for j, k in self.body.forwarded.items()}
        ys.update(zip(self._own, own, strict=True))
        told = dataclasses.replace(told, states=after)
        return carry, [ys[j] for j in range(len(self.body.y_avals))], after, told

    @property
    def _own(self) -> list[int]:
        """The outputs that are more than the new carry."""
        return [j for j in range(len(self.body.y_avals)) if j not in self.body.forwarded]

    def _step(self, consts, carry, x):
        new, ys = self.body(consts, carry, x)
        return new, [ys[j] for j in self._own]

    def _sequential(self, consts, init, xs):
        how: dict[str, Any] = {"length": self.length, "reverse": False, "unroll": self.unroll}
        _, ys, after, _ = run_with_trajectory(self.body, consts, init, xs, **how)
        return after, [ys[j] for j in self._own]

    def _turned(self, stacked: Sequence[Array]) -> list[Array]:
        """In the order of the steps, or back."""
        return [a[::-1] for a in stacked] if self.reverse else list(stacked)


def checked_guess(guess: Any, body: Body, length: int) -> list[Array]:
    """The leaves of a guess, which are those of the carry over all steps.

    Raises:
      ValueError: if their number or shapes are others.
      TypeError: if their dtypes are.
    """
    leaves, wanted = list(map(jnp.asarray, jax.tree.leaves(guess))), body.carry_avals
    if len(leaves) != len(wanted):
        raise ValueError(
            f"guess: got {len(leaves)} arrays; the carry has {len(wanted)} that a step changes, "
            "and a guess is all of them over all steps"
        )
    for k, (leaf, aval) in enumerate(zip(leaves, wanted, strict=True)):
        shape = (length, *aval.shape)
        if leaf.shape != shape:
            raise ValueError(f"guess: leaf {k} has the shape {leaf.shape}; {shape} is wanted")
        if leaf.dtype != aval.dtype:
            raise TypeError(f"guess: leaf {k} is of {leaf.dtype}; {aval.dtype} is wanted")
    return leaves
