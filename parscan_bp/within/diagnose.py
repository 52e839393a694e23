"""`diagnose_within`: what each scan of a function does with the numbers that it gets there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.diagnose import Diagnosis, Fault, diagnose
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS
from parscan_bp.jaxprs.read import called, differentiable, scan_counts, split_operands
from parscan_bp.jaxprs.replay import bind, evaluate, interpret
from parscan_bp.trees import replace_at
from parscan_bp.types import Array
from parscan_bp.within.dispatch import typed
from parscan_bp.within.program import Arguments, traced_function
from parscan_bp.within.rewrite import holds_scan
from parscan_bp.within.sites import Site, sites_of


@dataclasses.dataclass(frozen=True, eq=False)
class ScanDiagnosis:
    """One scan as it ran.

    Attributes:
      index, source: as of `ScanWithin`.
      diagnosis: as by `diagnose`, its leaves in the order in which JAX has them.
    """

    index: int
    source: str
    diagnosis: Diagnosis

    def __str__(self):
        return f"scan {self.index} at {self.source}: {self.diagnosis}"


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramDiagnosis:
    """What happened in the scans of a function; ``str()`` is a text.

    Attributes:
      scans: each scan as often as it ran, in that order.
      remarks: what could not be looked at, and why.
    """

    scans: tuple[ScanDiagnosis, ...]
    remarks: tuple[str, ...] = ()

    @property
    def first(self) -> tuple[ScanDiagnosis, Fault] | None:
        """Where to look first: values as they run, then derivatives from the last scan back."""
        every = [(scan, fault) for scan in self.scans for fault in scan.diagnosis.faults]
        values = [pair for pair in every if pair[1].quantity in ("carry", "output")]
        back = [(scan, fault) for scan in self.scans[::-1] for fault in scan.diagnosis.faults]
        return next(iter([*values, *back]), None)

    def __str__(self):
        return "\n".join([*map(str, self.scans), *self.remarks])


def diagnose_within(
    f: Callable,
    *args: Any,
    threshold: float | None = None,
    fraction: float = 1e-3,
    **kwargs: Any,
) -> ProgramDiagnosis:
    """Runs ``f(*args, **kwargs)`` and its backward pass, and says where in its scans a fault is.

    Every scan is looked at by `diagnose`, with the carries and inputs that it gets there and the
    cotangents that the rest of the function hands back. A scan inside of another is a part of its
    step: the operation that is found may lie in it.

    Args:
      f: as in `replace_scans`. What is differentiated is the sum of all float numbers of its
        result: of a loss, the loss.
      *args: its arguments, numbers: not inside of `jax.jit` or `jax.grad`.
      threshold, fraction: as in `diagnose`.
      **kwargs: further arguments of ``f``.

    Returns:
      The `ProgramDiagnosis`; print it. Scans inside of a `jax.lax.while_loop`, of a function with a
      rule of its own or of a `jax.shard_map` are not looked at, as it says.

    Raises:
      What ``f`` raises; ValueError for traced values, and for a function that switches
      `jax.enable_x64` on by itself.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> f = lambda h: jax.lax.fori_loop(0, 5, lambda k, h: h / (k - 3.0), h)
      >>> scan, fault = pb.diagnose_within(f, 1.0).first
      >>> fault.step, fault.operation.primitive
      (3, 'div')
    """
    given = Arguments(args, kwargs)
    if any(isinstance(v, jax.core.Tracer) for v in given.arrays):
        raise ValueError("args: got traced values; numbers are wanted, outside of jit and grad")
    program = traced_function(f, given)
    if program.obstacle:
        raise ValueError(f"f: {program.obstacle}; switch it on around diagnose_within, too")
    run = _Run(program.closed, given.arrays)
    with jax.debug_nans(False), jax.debug_infs(False):
        visits = run.visits()
        cotangents, remarks = _cotangents(run, visits)
        found = [
            ScanDiagnosis(
                site.index,
                site.source,
                _diagnosed(site, values, ct, {"threshold": threshold, "fraction": fraction}),
            )
            for (site, values, _), ct in zip(visits, cotangents, strict=True)
        ]
    return ProgramDiagnosis(tuple(found), (*remarks, *run.unseen(visits)))


Visit = tuple[Site, list[Array], list[Array]]
"""A scan, its operands and its results."""


class _Run:
    """A program that is run operation by operation, with numbers."""

    def __init__(self, closed: ClosedJaxpr, args: Sequence[Array]):
        self._closed, self._args = closed, args
        self._sites = sites_of(closed)
        self._at = {id(site.equation): site for site in self._sites}

    def visits(self) -> list[Visit]:
        """Every scan that is run."""
        found: list[Visit] = []

        def scanned(site, values, outs):
            found.append((site, values, outs))
            return outs

        self._run(scanned)
        return found

    def loss(self, probes: Sequence[Sequence[Array]]) -> Array:
        """The sum of the results, with these added to the float results of each scan."""
        added = iter(probes)

        def scanned(_, __, outs):
            moving = differentiable([jax.typeof(v) for v in outs])
            return replace_at(
                outs, moving, [outs[k] + p for k, p in zip(moving, next(added), strict=True)]
            )

        outs = self._run(scanned)
        moving = differentiable([jax.typeof(v) for v in outs])
        return sum((jnp.sum(outs[k].real) for k in moving), start=jnp.zeros(()))

    def _run(self, scanned: Callable[[Site, list[Array], list[Array]], list[Array]]) -> list[Array]:
        def apply(eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
            kind = kind_of(eqn)
            if kind == "scan":
                values = list(map(typed, eqn.invars, values))
                return scanned(self._at[id(eqn)], values, bind(eqn, values))
            if kind in CALLS and holds_scan(eqn):
                return interpret(called(eqn), values, apply)
            if kind == "cond" and holds_scan(eqn):
                branches = eqn.params["branches"]
                which = min(max(int(values[0]), 0), len(branches) - 1)
                return interpret(branches[which], values[1:], apply)
            return bind(eqn, values)

        return interpret(self._closed, self._args, apply)

    def unseen(self, visits: Sequence[Visit]) -> list[str]:
        """What is said of the scans that are not among these."""
        seen = {site.index for site, _, _ in visits}
        return [
            f"scan {site.index} at {site.source} was not looked at: it is inside of "
            f"{' > '.join(site.inside)}"
            for site in self._sites
            if site.index not in seen and not (site.inside and "scan" in site.inside)
        ]


def _cotangents(run: _Run, visits: Sequence[Visit]) -> tuple[list[Any], list[str]]:
    """Of the float results of every scan that was run; ``None`` for each if there are none."""
    probes = []
    for _, _, outs in visits:
        moving = differentiable([jax.typeof(v) for v in outs])
        probes.append([jnp.zeros_like(outs[k]) for k in moving])
    try:
        return jax.grad(run.loss)(probes), []
    except (TypeError, ValueError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        return [None] * len(visits), [
            f"the function has no reverse mode, so that each scan was looked at by itself: {why}"
        ]


def _diagnosed(site: Site, values: Sequence[Array], cotangents: Any, how: dict) -> Diagnosis:
    params = site.equation.params
    consts, init, xs = split_operands(site.equation, values)
    _, count = scan_counts(site.equation)

    def step(carry, x):
        outs = evaluate(params["jaxpr"], [*consts, *carry, *x])
        return outs[:count], outs[count:]

    outs = site.equation.outvars
    moving = differentiable([v.aval for v in outs])
    whole: Any = None
    if cotangents is not None:
        nothing = [None] * len(outs)
        every = replace_at(nothing, moving, cotangents)
        whole = every[:count], every[count:]
    length, reverse = params["length"], params["reverse"]
    return diagnose(step, init, xs, length, reverse, cotangents=whole, **how)
