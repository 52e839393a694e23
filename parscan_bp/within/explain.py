"""`explain_within`: what becomes of every scan of a function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.explain import Explanation, explain
from parscan_bp.jaxprs.read import differentiable, scan_counts
from parscan_bp.jaxprs.replay import bind
from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.solvers import Solver, Sweep
from parscan_bp.trees import nbytes, replace_at
from parscan_bp.within.dispatch import Dispatch
from parscan_bp.within.outputs import ScanCall, loop_of
from parscan_bp.within.program import Arguments, traced_function
from parscan_bp.within.replacement import Only, Replacement
from parscan_bp.within.rewrite import rewritten
from parscan_bp.within.sites import Site, sites_of


@dataclasses.dataclass(frozen=True)
class ScanWithin:
    """One scan of a function.

    Attributes:
      index: its number, for ``only`` of `replace_scans`.
      source: where the user's source calls it, ``file.py:line``.
      inside: what holds it, the outermost first, as ``("jit", "scan")``.
      length: how many steps it has.
      carry: types of the carry's leaves.
      buffers: leaves of the carry that become outputs.
      stays: why it is not replaced; ``None`` if it is.
      explanation: as by `explain`; ``None`` where it stays, or was never reached.
      stored: bytes that its derivative keeps of the forward pass; ``None`` where it has none.
      stored_by_lax: the same by `jax.lax.scan`.
      otherwise: of one that is left to `jax.lax.scan`, what a named `Sweep` would do.
    """

    index: int
    source: str
    inside: tuple[str, ...]
    length: int
    carry: tuple[str, ...]
    buffers: tuple[int, ...] = ()
    stays: str | None = None
    explanation: Explanation | None = None
    stored: int | None = None
    stored_by_lax: int | None = None
    otherwise: str | None = None

    @property
    def replaced(self) -> bool:
        """Whether its derivatives are by a solver."""
        return self.explanation is not None and self.explanation.choice != "lax.scan"

    def __str__(self):
        indent = "  " * self.inside.count("scan")
        carry = ", ".join(self.carry) or "nothing"
        held = f" in {' > '.join(self.inside)}" if self.inside else ""
        lines = [f"{self.index}  {self.source}{held}: {self.length} steps, carry {carry}"]
        if self.buffers:
            rows = ", ".join(self.carry[k] for k in self.buffers)
            lines.append(f"   outputs made of what the steps write row by row: {rows}")
        if self.explanation is not None:
            lines.append(f"   derivatives by {self.explanation.choice}: {self.explanation.reason}")
            if self.explanation.structure is not None:
                lines[-1] += f"; {self.explanation.structure} Jacobians"
        else:
            lines.append(f"   stays as it is: {self.stays or 'the function was not traced so far'}")
        if self.otherwise is not None:
            lines.append(f"   {self.otherwise}")
        if self.stored is not None and self.stored_by_lax is not None:
            lines.append(f"   stored: {self.stored:,} bytes; by lax.scan {self.stored_by_lax:,}")
        return "\n".join(indent + line for line in lines)


@dataclasses.dataclass(frozen=True)
class ProgramExplanation:
    """What becomes of the scans of a function; ``str()`` has some lines for each.

    Attributes:
      scans: in the order in which the program runs, one that holds others before them.
    """

    scans: tuple[ScanWithin, ...]

    def __str__(self):
        taken = sum(scan.replaced for scan in self.scans)
        many = "" if len(self.scans) == 1 else "s"
        count = f"{len(self.scans)} scan{many}, {taken} by a solver"
        return "\n".join([count, *map(str, self.scans)])


def explain_within(
    f: Callable,
    *args: Any,
    solver: Solver | None = None,
    otherwise: str = "lax",
    only: Only = None,
    memory_limit: int | MemoryLimit | None = None,
    **kwargs: Any,
) -> ProgramExplanation:
    """What `replace_scans` does with each scan of ``f(*args, **kwargs)``, without running it.

    Args:
      f: as in `replace_scans`.
      *args: its arguments. Arrays may be `jax.ShapeDtypeStruct`.
      solver, otherwise, only, memory_limit: as in `replace_scans`.
      **kwargs: further arguments of ``f``.

    Returns:
      For each scan where it stands in the source, its length and carry, what will run and why, and
      the bytes that are kept for its derivative, which two traces of that tell. Of one that is left
      to `jax.lax.scan`, also whether a named `Sweep` would take it.

    Raises:
      As `replace_scans`.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> f = lambda a: jax.lax.fori_loop(0, 500, lambda k, h: jnp.sin(a @ h), jnp.ones(9))
      >>> pb.explain_within(f, jnp.eye(9)).scans[0].length
      500
    """
    how = Replacement.of(solver, otherwise, only, memory_limit)
    program = traced_function(f, Arguments(args, kwargs))
    sites = sites_of(program.closed)
    how.check(sites)
    if program.obstacle:
        left = (_described(site, how) for site in sites)
        return ProgramExplanation(
            tuple(dataclasses.replace(scan, stays=program.obstacle) for scan in left)
        )
    explaining = _Explaining(how, sites)
    rewritten(program.closed, explaining)
    return ProgramExplanation(tuple(explaining.told(site) for site in sites))


class _Explaining(Dispatch):
    """Explains each scan as it comes to it, and then does what is done with it."""

    def __init__(self, how: Replacement, sites: Sequence[Site]):
        super().__init__(how, sites)
        self._found: dict[int, ScanWithin] = {}

    def told(self, site: Site) -> ScanWithin:
        return self._found.get(site.index) or _described(site, self._how)

    def scanned(self, site, loop, left):
        if site.index not in self._found:
            self._found[site.index] = self._explained(site, loop)
        return super().scanned(site, loop, left)

    def _explained(self, site: Site, loop: ScanCall) -> ScanWithin:
        found = _described(site, self._how)
        call = lambda **named: explain(loop.step, loop.init, loop.xs, **site.how, **named)  # noqa: E731
        try:
            explanation = call(**self._how.options)
        except NotImplementedError as refused:
            if self._how.otherwise == "raise":
                raise
            return dataclasses.replace(found, stays=str(refused))
        buffers = self.buffers(site)
        named = None
        if explanation.choice == "lax.scan" and self._how.solver is None:
            named = _by_sweep(call)

        def ours(values: Sequence[Any]) -> list[Any]:
            """The scan alone; scans within its step as they are."""
            return self.solved(site, loop_of(site.equation, values, buffers, bind))

        return dataclasses.replace(
            found,
            buffers=tuple(buffer.leaf for buffer in buffers),
            explanation=explanation,
            stored=_stored(ours, site),
            stored_by_lax=_stored(lambda values: bind(site.equation, values), site),
            otherwise=named,
        )


def _described(site: Site, how: Replacement) -> ScanWithin:
    params = site.equation.params
    count, carry = scan_counts(site.equation)
    types = tuple(v.aval.str_short() for v in site.equation.invars[count : count + carry])
    stays = site.stays
    if stays is None and not how.takes(site):
        stays = "only= does not name it"
    return ScanWithin(site.index, site.source, site.inside, params["length"], types, stays=stays)


def _by_sweep(call: Callable) -> str:
    """What a named `Sweep` would do."""
    try:
        call(solver=Sweep())
    except NotImplementedError as refused:
        return f"solver=Sweep() would refuse it: {refused}"
    return "solver=Sweep() would take it"


def _stored(call: Callable, site: Site) -> int | None:
    """Bytes between the forward and the backward pass, beside the operands."""
    avals: list[Any] = [v.aval for v in site.equation.invars]
    values = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    moving = differentiable(avals)

    def residuals(values):
        given = [values[k] for k in moving]
        return jax.vjp(lambda m: call(replace_at(values, moving, m)), given)[1]

    try:
        kept = jax.tree.leaves(jax.eval_shape(residuals, values))
    except Exception:  # it has no reverse mode, which the program may never ask for
        return None
    return nbytes(kept)
