"""The step of a scan: the traced body, and all that is known of it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp import kernels
from parscan_bp.choice import wisdom
from parscan_bp.choice.facts import Facts
from parscan_bp.choice.rules import ON_CHIP
from parscan_bp.choice.work import Work, work_of
from parscan_bp.jaxprs.batching import NOT_KNOWN
from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody
from parscan_bp.linearise.check import check_linearisation
from parscan_bp.linearise.derived import derived
from parscan_bp.linearise.given import Given
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.storage import StoredBytes
from parscan_bp.scan.values.probe import Probe
from parscan_bp.solvers import Solver
from parscan_bp.structure import (
    ALONG_MAPPED_AXIS,
    CarryStructure,
    check_structure,
    couples_mapped_axis,
    find_structure,
    unsupported,
)
from parscan_bp.trees import is_sharded, nbytes

CHECKED = 2
"""Steps that a check looks at: two, as operators are multiplied and cotangents summed over them."""

Linearised = tuple[Linearisation, Sequence[Any]]
"""A linearisation, and the values that it closes over."""


def forms(solver: Solver | None) -> bool:
    """Whether the solver needs the Jacobians formed."""
    return solver is not None and solver.needs == "operators"


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step that is linearised. What is asked of it is found once.

    Attributes:
      staged: the traced call of the scan.
      body: the step, of the constants that `hoist` makes.
      hoist: what it makes of its constants alone, if anything.
      cell: the cell that it is, if it is known to be one.
      jacobian: "auto", "dense" or "diagonal"; "given" where the caller states it.
      given: the linearisation that the caller states.
    """

    staged: Staged
    body: Body
    hoist: Hoist | None
    cell: CellBody | None
    jacobian: str
    given: Linearised | None = None

    @classmethod
    def of(
        cls,
        staged: Staged,
        traced: Body,
        cell: CellBody | None,
        jacobian: str | Callable,
        trees: tuple[Any, Any, Any] | None,
    ) -> Step:
        """The step as the cell that it is, or as what is left in the loop of it.

        Args:
          staged: the traced call.
          traced: its body.
          cell: the cell that the body is, if it is known to be one.
          jacobian: a name that `scan` takes, or a function. It is not kept, only what it makes:
            plans live no longer than it does.
          trees: see `Given.of`; only that needs them.

        Raises:
          ValueError: if a given Jacobian does not fit the carry.
        """
        if any(is_sharded(v.aval) for v in staged.equation.invars):
            cell = None  # its products join arrays that may be spread in different ways
        if traced.unbatchable is not None:
            cell = None  # what it states is of many steps at once
        hoist = Hoist.of_step(traced.jaxpr, traced.num_consts) if cell is None else None
        if hoist is not None:
            consts = traced.num_consts + len(hoist.made.out_avals)
            traced = Body(hoist.body, consts, traced.num_carry)
        if callable(jacobian):
            return cls(staged, traced, hoist, cell, "given", Given.of(traced, trees, jacobian))
        return cls(staged, traced, hoist, cell, jacobian)

    @property
    def length(self) -> int:
        return self.staged.equation.params["length"]

    @property
    def reverse(self) -> bool:
        return self.staged.equation.params["reverse"]

    @property
    def unroll(self) -> int | bool:
        return self.staged.equation.params["unroll"]

    @functools.cached_property
    def structure(self) -> CarryStructure:
        """That of its Jacobian."""
        return find_structure(self.body.jaxpr, self.body.num_consts, self.body.num_carry)

    @functools.cached_property
    def layout(self) -> CarryLayout:
        """That of the carry under this structure, complex numbers in two parts."""
        return self.body.layout(self.structure.batch_axes)

    def linearise(self, *, formed: bool) -> Linearised:
        """Its linearisation, made once, and the values that this closes over.

        Args:
          formed: whether the Jacobian is to be formed, as a solver needs it that multiplies them;
            one that is given is.
        """
        return self.given or self._derived(formed)

    @functools.cached_property
    def _derived(self) -> Callable[[bool], Linearised]:
        @functools.cache
        def made(formed):
            return derived(self.body, self.structure, self.cell, self.jacobian, formed=formed), ()

        return made

    def not_linear(self, solver: Solver | None) -> str | None:
        """What in it the linear model does not hold, if anything.

        A given Jacobian stands for that of a ``custom_vjp``. What works along a mapped axis is left
        to `lax.scan`, too, but for a solver that was named, which takes it where its Jacobians say
        all and its rounds do not vary: entries would wait for one another.
        """
        reasons = unsupported(self.body.jaxpr)
        if self.given is not None:
            reasons = [r for r in reasons if r.primitive != "custom_vjp_call"]
        if solver is not None and not solver.rounds_vary:
            along = [r for r in reasons if r.message == ALONG_MAPPED_AXIS]
            reasons = [r for r in reasons if r not in along]
            if along and (forms(solver) or self.jacobian != "auto"):
                body = self.body
                found = couples_mapped_axis(body.jaxpr, body.num_consts, body.num_carry)
                reasons += [] if found is None else [found]
        if not reasons:
            return None
        return f"the step contains {reasons[0].primitive}: {reasons[0].message}"

    @property
    def not_batched(self) -> str | None:
        """What keeps many of them from being linearised as one batch, if anything."""
        name = self.body.unbatchable
        return None if name is None else f"the step contains {name}, which {NOT_KNOWN}"

    @functools.cached_property
    def work(self) -> Work:
        """What it does."""
        return work_of(self.body.jaxpr, self.body.num_consts, self.body.num_carry)

    def facts(self, linear: Linearisation, *, may_form: bool) -> Facts:
        """What a choice is made from.

        Args:
          linear: the linearisation that the choice begins with.
          may_form: whether kernels that form a cell's Jacobians are a choice.
        """
        layout = self.layout
        return Facts(
            platform=jax.default_backend(),
            length=self.length,
            batch=math.prod(layout.batch_shape),
            features=sum(layout.features),
            leaves=len(self.body.float_carry),
            itemsize=layout.dtype.itemsize,
            structure=self.structure.kind,
            linearisation=linear.kind,
            equations=len(self.body.jaxpr.jaxpr.eqns),
            touched=self.body.nbytes + nbytes(list(self.body.jaxpr.in_avals)),
            jax_version=jax.__version_info__[:2],
            on_chip=may_form and self.cell is not None and self._on_chip(self.cell),
        )

    def _on_chip(self, cell: CellBody) -> bool:
        """See `Facts`; several GPUs may share the arrays, of which a kernel knows nothing."""
        # What is looked at first needs no import of kernels.
        if jax.default_backend() != "gpu" or jax.device_count() > 1:
            return False
        if kernels.unusable(interpret=False) is not None:
            return False

        def jacobians(consts, carry, x):
            return cell.jacobian(Steps(consts, carry, x, carry, cell.params(consts)))

        avals = list(self.body.const_avals), *self.body.stacked_avals(self.length)
        operator = jax.eval_shape(jacobians, *avals)
        # With bfloat16 no kernel was run on a GPU yet.
        return operator.dtype == jnp.float32 and ON_CHIP.takes(operator)

    def costs(self, scan: LinearScan, extra: Sequence[Any]) -> StoredBytes:
        """The bytes that derivatives store of it; a carry that is an output is the caller's."""
        body, solver = self.body, scan.solver
        own = [k for k in range(body.num_carry) if k not in body.forwarded.values()]
        each = functools.cache(lambda: scan.bytes_of_a_step(extra))

        def solving(n):
            linearised, beside = each()
            return solver.memory(n, linearised, beside)

        return StoredBytes(
            carry=nbytes(list(body.carry_avals)),
            step=nbytes([body.carry_avals[k] for k in own if body.slopes_read[k]])
            + scan.kept_bytes,
            x=body.x_bytes,
            shared=body.const_bytes,
            solving=solving,
        )

    @functools.cached_property
    def key(self) -> str:
        """By which a measurement of the scan is remembered."""
        return wisdom.scan_key(self.body, self.length, self.unroll)

    @functools.cached_property
    def probe(self) -> Probe:
        """What is asked of a stretch of the scan."""
        return Probe(self.staged.equation)

    def check(self, args: Sequence[Any], linear: Linearised) -> None:
        """Compares what is assumed or stated of it with random products of its own derivative.

        Args:
          args: of the traced `lax.scan`.
          linear: the linearisation that is used; of a cell all is checked that it states, as what
            one solver does not use of it, another does.

        Raises:
          ValueError: naming an entry that contradicts what is assumed.
        """
        args = list(args) if self.hoist is None else self.hoist.args(args)
        consts, carry, stacked = self.body.split(args)
        order = (-1, -2) if self.reverse else (0, 1)
        xs = [[v[t] for v in stacked] for t in order[: min(self.length, CHECKED)]]
        stated, structure, key = [linear], self.structure, jax.random.key(0)
        if self.cell is not None and self.jacobian == "auto":
            stated = [self.linearise(formed=formed) for formed in (False, True)]
        if any(one.diagonal for one, _ in stated):
            structure = dataclasses.replace(structure, diagonal=True)
        check_structure(self.body.jaxpr, structure, consts, carry, xs[0], key)
        for one, extra in stated:
            check_linearisation(one, consts, carry, xs, extra, key)
