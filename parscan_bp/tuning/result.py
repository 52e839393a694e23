"""What a race said, and which of its programs is remembered."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp import store
from parscan_bp.choice import wisdom
from parscan_bp.choice.wisdom import Remembered, Timing
from parscan_bp.forward import Forward
from parscan_bp.scan.values import forward_wisdom
from parscan_bp.scan.values.forward_wisdom import RememberedForward
from parscan_bp.solvers import Solver
from parscan_bp.tuning.program import Compiled
from parscan_bp.tuning.race import race
from parscan_bp.types import PyTree

BETTER = 1.05
"""What a speedup over the rules' choice has to exceed, its whole interval, to be remembered."""

ROUNDINGS, AMPLIFIED = 1000, 30
"""By how many roundings of its largest entry a gradient may differ from the reference's; or by how
many times what one rounding of the arguments makes of it."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a race said; ``str()`` is its table.

    Attributes:
      solver: the winner as ``solver=`` takes it; ``None`` for `jax.lax.scan`.
      winner: its name; that of the rules' choice where nothing is clearly faster.
      by_rules: the name of what the rules chose.
      timings: of the candidates whose gradients are those of `jax.lax.scan`, fastest first.
      refused: why others did not take part.
      path: where the winner is remembered; ``None`` if the rules' choice stands or nothing is kept.
      forward: what ``forward="auto"`` takes from now on, if methods took part and anything is kept:
        the fastest of them, or "exact".
      named_alone: those that are faster than the winner and not remembered, since their products of
        Jacobians may overflow with other values than these; ``solver=`` takes them.
    """

    solver: Solver | None
    winner: str
    by_rules: str
    timings: tuple[Timing, ...]
    refused: Mapping[str, str]
    path: pathlib.Path | None
    forward: str | Forward | None = None
    named_alone: tuple[str, ...] = ()

    def __str__(self):
        width = max(len(t.name) for t in self.timings)
        head = f"{'value and gradient':<{width}}  {'ms':>9}  {'MB':>9}  over the rules' choice"
        lines = [head]
        for t in self.timings:
            interval = f"{t.speedup:.2f} [{t.low:.2f}, {t.high:.2f}]"
            marks = [f" by {word}" for word, name in self._marks if name == t.name]
            size = "" if t.bytes is None else f"{t.bytes / 1e6:.4g}"
            row = f"{t.name:<{width}}  {1e3 * t.seconds:>9.4g}  {size:>9}  {interval}"
            lines.append(f"{row}{''.join(marks)}")
        lines += [f"{name}: {why}" for name, why in self.refused.items()]
        lines += [
            f"{name} is faster, and products of Jacobians may overflow: name it to use it"
            for name in self.named_alone
        ]
        if self.winner == self.by_rules:
            lines.append("nothing else is clearly faster than what the rules chose")
        else:
            kept = "not kept" if self.path is None else f"remembered in {self.path}"
            lines.append(f"{self.winner} is {kept}")
        if self.forward is not None:
            lines.append(f"forward='auto' is forward={self.forward!r}")
        return "\n".join(lines)

    @property
    def _marks(self):
        return ("the rules", self.by_rules), ("this race", self.winner)


def decide(
    programs: Mapping[str, Callable[[], Compiled]],
    solvers: Mapping[str, Solver | None],
    reference: str,
    by_rules: str,
    key: str,
    budget_s: float,
    tell: Callable[[str], None],
    memory_limit: int | None = None,
) -> Tuning:
    """Compiles the candidates, checks them, races them, and remembers the winner.

    Args:
      programs: for each name, what compiles its value and gradient: a function of whether the
        arguments are moved by one rounding.
      solvers: for those names that can be remembered, the solver.
      reference: the name of the candidate whose gradients are right.
      by_rules: that of the rules' choice.
      key: see `wisdom.scan_key`.
      budget_s: seconds for the race.
      tell: is told how far it is.
      memory_limit: bytes that the winner may take; ``None`` for any.

    Raises:
      ValueError: if none takes so little.
      What the reference, or the rules' choice, raises.
    """
    ready, refused = {}, {}
    for name in dict.fromkeys([reference, *programs]):
        tell(f"compiles {name}")
        try:
            program = programs[name]()
            got = program()
        except (NotImplementedError, ValueError, MemoryError) as error:
            if name in (reference, by_rules):
                raise
            refused[name] = str(error).splitlines()[0]
            continue
        if name == reference:
            wanted, moved = got, program(moved=True)
        difference = differs(got, wanted, moved)
        if difference and name != by_rules:
            refused[name] = difference
        else:
            ready[name] = program
    outcome = race(ready, budget_s, tell)
    timings = [
        Timing(name, outcome.median(name), *outcome.speedup(name, by_rules), program.bytes)
        for name, program in ready.items()
    ]
    timings.sort(key=lambda t: t.seconds)
    small = {t.name for t in timings if _fits(t, memory_limit)}
    if by_rules in small:
        faster = [t.name for t in timings if t.low > BETTER and t.name in solvers.keys() & small]
    else:  # whatever is fastest of those that fit
        faster = [t.name for t in timings if t.name in solvers.keys() & small]
    better = [name for name in faster if wisdom.is_remembered(solvers[name])]
    if not better and by_rules not in small:
        least = min(t.bytes or 0 for t in timings if t.name in solvers)
        raise ValueError(f"memory_limit: got {memory_limit:,}; the least is {least:,} bytes")
    winner, path = (better or [by_rules])[0], None
    if better:
        path = wisdom.remember(key, Remembered(solvers[winner], tuple(timings)))
    else:
        store.remove(key)
    named_alone = tuple(faster[: faster.index(winner)] if better else faster)
    told = tuple(timings)
    return Tuning(solvers[winner], winner, by_rules, told, refused, path, named_alone=named_alone)


def _fits(timing: Timing, memory_limit: int | None) -> bool:
    return memory_limit is None or timing.bytes is None or timing.bytes <= memory_limit


def with_methods(found: Tuning, key: str, methods: Mapping[str, Forward]) -> Tuning:
    """What the race says of the methods that took part, which is remembered, too.

    Args:
      found: the race.
      key: of the scan.
      methods: by the names that they have in it.
    """
    if not methods:
        return found
    (solver,) = (t for t in found.timings if t.name == found.winner)
    better = [t for t in found.timings if t.name in methods and t.low > BETTER * solver.speedup]
    forward = methods[better[0].name] if better else "exact"
    timings = tuple(t for t in found.timings if t.name in methods or t is solver)
    path = forward_wisdom.remember(key, RememberedForward(forward, timings))
    return dataclasses.replace(found, forward=None if path is None else forward)


def differs(got: PyTree, wanted: PyTree, moved: PyTree) -> str:
    """How a gradient differs from the reference's by more than rounding; nothing if it does not.

    Args:
      got, wanted: values and gradients.
      moved: what the reference has where its arguments are moved by one rounding: where a program
        amplifies errors, none can be asked for more.
    """
    rows = zip(
        jax.tree.leaves_with_path(wanted), jax.tree.leaves(got), jax.tree.leaves(moved), strict=True
    )
    for (path, right), *others in rows:
        eps = float(jnp.finfo(right.dtype).eps)
        right, ours, beside = (np.asarray(v, np.complex128) for v in (right, *others))
        allowed = ROUNDINGS * eps * np.max(np.abs(right), initial=0)
        allowed = max(allowed, AMPLIFIED * np.max(np.abs(beside - right), initial=0))
        if not np.all(np.abs(ours - right) <= allowed):  # of NaN, too
            worst = np.max(np.abs(ours - right))
            return f"differs from lax.scan by {worst:.1e} in {jax.tree_util.keystr(path)}"
    return ""
