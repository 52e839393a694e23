"""``forward="fused"``: a cell's recurrence in one kernel, and its adjoint in another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from parscan_bp import kernels, native
from parscan_bp.arguments import check_bool
from parscan_bp.cells import Gated
from parscan_bp.cells.fused import FusedCell
from parscan_bp.choice.facts import Choice
from parscan_bp.linearise.base import Steps
from parscan_bp.linearise.cell import CellBody
from parscan_bp.primitives.zeros import instantiated, is_zero
from parscan_bp.scan.step import Step
from parscan_bp.scan.values.base import Pass, PassResult, Values
from parscan_bp.scan.values.native import Native
from parscan_bp.solvers import Sweep
from parscan_bp.types import Array

TAKES = (
    "forward: the fused kernels take functools.partial(cell, params) of parscan_bp.cells with "
    "Elman, GRU, LSTM or another cells.Gated, or an RNN layer with such a cell of Flax"
)

NO_LLVM = (
    "on a CPU it is a native function, which llvmlite makes, and that is not installed: "
    "pip install 'parscan_bp[cpu]'; on a GPU it is a kernel (interpret=True simulates that)"
)


GAIN = (
    'forward="fused" would make all values in one kernel; they differ from those of lax.scan by '
    "rounding. Both were timed on an NVIDIA H100: bench/results/gpu.json"
)


@dataclasses.dataclass(frozen=True)
class Fused(Values):
    """What ``forward="fused"`` of `parscan_bp.scan` means, with its option.

    Args:
      interpret: simulates the kernels on any device, slowly, to check them.

    Raises:
      TypeError: if it is no bool.

    Example:
      >>> import parscan_bp as pb
      >>> pb.Fused(interpret=True)
      Fused(interpret=True)
    """

    interpret: bool = False
    # Why the kernels cannot run here: part of what a plan is kept by. `here` fills it in.
    lacks: str | None = dataclasses.field(default=None, kw_only=True, repr=False)

    def __post_init__(self):
        check_bool("interpret", self.interpret)

    def here(self) -> Fused | Native:
        """What it is on this device; else with what that and this jax lack."""
        lacks = kernels.unusable(self.interpret)
        if lacks is not None and jax.default_backend() == "cpu" and not self.interpret:
            return Native() if native.is_available() else dataclasses.replace(self, lacks=NO_LLVM)
        return dataclasses.replace(self, lacks=lacks)

    @property
    def gain(self):
        return GAIN if self.lacks is None else None

    def obstacle(self, staged, body):
        """Of a step without a cell; `of` says more of one that has one.

        What a GPU or another jax would not help is told before what they would.
        """
        return None if body.float_carry else f"{TAKES}, got a step that carries no floats"

    def of(self, step, *, adjoins):
        of, cell = self._cells_of(step)
        return _InKernels(self, step, of, cell, adjoins)

    def _cells_of(self, step: Step) -> tuple[CellBody, FusedCell]:
        """The cell that a step is, and as the kernels take it.

        Raises:
          NotImplementedError: if the step or its types are not what the kernels take, or the device
            or this jax has none.
          ValueError: if the batch axes of carry and inputs differ.
        """
        body, of = step.body, step.cell
        if of is None or not isinstance(of.cell, Gated):
            raise NotImplementedError(
                f"{TAKES}, got {'another step' if of is None else of.cell}; "
                "forward='exact' takes any step"
            )
        if self.lacks is not None:
            raise NotImplementedError(
                f"forward: {self!r}: {self.lacks}; forward='exact' runs everywhere"
            )
        held = [name for name, value in vars(of.cell).items() if isinstance(value, jax.Array)]
        if held:
            raise NotImplementedError(
                f"forward: {type(of.cell).__name__} holds arrays, {', '.join(held)}; the fused "
                "kernels take cells whose fields are Python's numbers; forward='exact' takes any"
            )
        avals = [*body.const_avals, *body.carry_avals, *body.x_avals]
        other = [a.dtype for a in avals if a.dtype not in (jnp.float32, jnp.bfloat16)]
        if other:
            raise NotImplementedError(
                f"forward: the fused kernels take float32 and bfloat16, this scan has {other[0]}; "
                "forward='exact' takes any dtype"
            )
        (x,), carry = body.x_avals, body.carry_avals[0]
        if x.shape[:-1] != carry.shape[:-1]:
            raise ValueError(
                f"forward: the fused kernels take inputs and carry of the same batch axes, got "
                f"{x.shape[:-1]} and {carry.shape[:-1]} for one step"
            )
        cell = FusedCell(of.cell)
        cell.check(carry)
        widest = max(a.dtype.itemsize for a in body.const_avals)
        for rule in (cell.forward_rule, cell.backward_rule):
            kernels.check_hidden(rule, carry.shape[-1], widest)
        return of, cell


@dataclasses.dataclass(frozen=True, eq=False)
class _InKernels(Pass):
    """The values and the adjoint of a scan over a cell, one kernel each.

    Attributes:
      how: the option of the call.
      scanned: its step.
      of: the cell as that step.
      cell: the cell as the kernels take it.
      adjoins: whether the adjoint is a kernel, too, or a solver's.
    """

    how: Fused
    scanned: Step
    of: CellBody
    cell: FusedCell
    adjoins: bool

    def run(self, loop, args, states):
        carry, ys, after = self._run(*self.scanned.body.split(args))
        return PassResult(carry, ys, after, loop.answers(args, after))

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[list[Array], list[Array], list[Array]]]:
        """``(consts, init, xs) -> (carry, ys, after)``."""

        @jax.jit
        def run(consts, init, xs):
            steps = Steps(consts, init, xs, init, self.of.params(consts))
            params, carry, x, _ = self.of.values(steps)
            after = self.cell.forward(
                self._kernel(self.scanned.reverse), params, jax.tree.leaves(carry), x
            )
            after = self.of.carry_leaves(after)
            end = 0 if self.scanned.reverse else -1
            ys = [after[k] for _, k in sorted(self.scanned.body.forwarded.items())]
            return [a[end] for a in after], ys, after

        return run

    def choice(self, choose):
        if self.adjoins:
            return Choice(Sweep(), "forward-mode; the backward pass is one fused kernel")
        return Choice(Sweep(), "the forward pass is a fused kernel, the Jacobian is given")

    def obstacle_at(self, place):
        return "the kernels run them all in one place; forward='exact' does not"

    @property
    def adjoint(self):
        return self._adjoint if self.adjoins else None

    def _adjoint(self, primal, active, gamma, last):
        """See `LinearScan.adjoint`."""
        steps = primal.steps(0, primal.length)
        params, before, x, after = self.of.values(steps)
        end, start = (0, -1) if self.scanned.reverse else (-1, 0)
        cts = None
        if not all(map(is_zero, gamma)):
            cts = [g.at[end].add(c) for g, c in zip(instantiated(gamma), last, strict=True)]
            cts = jax.tree.leaves(self.of.own_carry(cts))
        kernel = self._kernel(not self.scanned.reverse)
        own = self.of.own_carry(primal.init), before, after, self.of.own_carry(last)
        init, before, after, last = map(jax.tree.leaves, own)
        grads, lambdas, dx = self.cell.backward(kernel, params, init, before, x, after, cts, last)
        lambdas = [a.astype(c.dtype) for a, c in zip(lambdas, after, strict=True)]
        lambdas = self.of.carry_leaves(lambdas)
        values = (steps.carry, steps.x, steps.new_carry)
        carry, x, new_carry = ([a[start] for a in v] for v in values)
        one = Steps(steps.consts, carry, x, new_carry, steps.extra)
        _, first = self.of.pull_carry(one, [a[start] for a in lambdas])
        return grads, first, self.of.x_cotangents(steps, dx, active), lambdas

    def _kernel(self, reverse: bool):
        how = kernels.interpreter() if self.how.interpret else None
        return functools.partial(kernels.fused_recurrence, reverse=reverse, interpret=how)
