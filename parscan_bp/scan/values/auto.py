"""``forward="auto"``: whether a method makes the values of a scan, decided before any of it runs.

What was measured of this very scan comes first (`parscan_bp.autotune` with ``forward=``). Else the
map of what was measured of others (`choice.forward_map`) says whether a method could be faster at
all, and a probe how many iterations it will take: a short stretch of the recurrence, run one step
after the other, has its largest Lyapunov exponent. Of values that are traced there is no probe: the
sequential pass makes them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from parscan_bp.choice.facts import Facts
from parscan_bp.choice.forward_map import forward_map
from parscan_bp.forward import Auto, Chunks, FixedPoint, Forward, Newton
from parscan_bp.forward.evaluate import stop_of, tolerance_of
from parscan_bp.forward.kinks import unknown_kinks
from parscan_bp.jaxprs.read import cut_to
from parscan_bp.scan.plan import Left, PlanOrLeft
from parscan_bp.scan.plan_record import record_plan
from parscan_bp.scan.step import Step
from parscan_bp.scan.values.base import Values
from parscan_bp.scan.values.method import Method
from parscan_bp.scan.values.options import ForwardOption

CANDIDATES: Mapping[str, Forward] = {
    "chunks": Chunks(),
    "newton": Newton(),
    "fixed_point": FixedPoint(),
}

MEASURED = "estimate"
"""The certificate that methods were measured with."""

EXACT = "exact"


@dataclasses.dataclass(frozen=True)
class ForwardChoice:
    """What makes the values of a scan with ``forward="auto"``, and why.

    Attributes:
      forward: as `scan` takes it: "exact" or a method. A program of `jax.jit`, where nothing can be
        probed, may be given it.
      reason: why.
      exponent: the largest Lyapunov exponent per step that the probe found; ``None`` without one.
      comes_back: whether a trajectory that the probe began anew, from the first carry, came near to
        the true one at half of that rate or faster, as a guess has to.
      probed: the steps of the probe.
      expected: for each method, the iterations that it is expected to take; ``None`` where it is
        not expected to converge.
    """

    forward: str | Forward
    reason: str
    exponent: float | None = None
    comes_back: bool = True
    probed: int = 0
    expected: Mapping[str, int | None] = dataclasses.field(default_factory=dict)

    def __str__(self):
        name = "lax.scan" if self.forward == EXACT else repr(self.forward)
        lines = [f"values by {name}: {self.reason}"]
        if self.exponent is not None:
            told = ", ".join(f"{k} {'-' if v is None else v}" for k, v in self.expected.items())
            lines.append(
                f"probe: Lyapunov exponent {self.exponent:.3g} a step, over {self.probed} steps"
                f"{'' if self.comes_back else ', but begun anew it goes elsewhere'}; "
                f"iterations expected: {told}"
            )
        return "\n".join(lines)


def decided(
    option: ForwardOption,
    plan: PlanOrLeft,
    args: Sequence[Any],
    plan_with: Callable[[Values], PlanOrLeft],
) -> tuple[ForwardOption, PlanOrLeft]:
    """The options and the plan of a call, a method chosen where that was left to us.

    Args:
      option: the options of the call.
      plan: its plan by these, which is that of `jax.lax.scan`'s values if a choice is left.
      args: of the call, flat.
      plan_with: the plan by a method; it raises `NotImplementedError` where that cannot be.
    """
    if option.auto is None:
        return option, record_plan(plan)
    choice = choose_forward(plan, args, option.auto, plan_with)
    if choice.forward == EXACT:
        return dataclasses.replace(option, auto=None), record_plan(plan)
    by = by_method(option.auto, choice.forward)
    return ForwardOption(by), record_plan(plan_with(by))


def by_method(auto: Auto, method: Any) -> Method:
    """What evaluates a scan by a method, certified as the caller wants it."""
    return Method(auto.certifying(method))


def choose_forward(
    plan: PlanOrLeft,
    args: Sequence[Any],
    auto: Auto,
    plan_with: Callable[[Values], PlanOrLeft],
    *,
    always_probe: bool = False,
) -> ForwardChoice:
    """What makes the values of a scan.

    Args:
      plan: of the scan with the values of `jax.lax.scan`.
      args: of the call, flat.
      auto: what the caller wants of a method's values; the method is to be chosen.
      plan_with: see `decided`.
      always_probe: whether there is a probe where no method could be chosen, too.
    """
    if isinstance(plan, Left) or plan.step is None or plan.facts is None:
        return ForwardChoice(EXACT, plan.reason if isinstance(plan, Left) else plan.choice.reason)
    if plan.rule is not None and plan.rule.loop.is_placed:
        return ForwardChoice(EXACT, f"methods were measured in one place, not by {plan.choice}")
    if auto.certify != MEASURED:
        untold = f"methods were measured with certify={MEASURED!r}, none with {auto.certify!r}"
        return ForwardChoice(EXACT, untold)
    known = plan.measured
    if known is not None and known.winner == EXACT:
        return ForwardChoice(EXACT, known.reason)
    try:
        plan_with(by_method(auto, Chunks() if known is None else known.winner))
    except NotImplementedError as error:
        return ForwardChoice(EXACT, str(error))
    unknown = _unknown_kinks(plan.step)
    if unknown:
        why = f"whether {unknown[0]} has a kink where a trajectory is, no certificate can tell"
        return ForwardChoice(EXACT, why)
    if known is not None and isinstance(known.winner, Forward):
        return ForwardChoice(auto.certifying(known.winner), known.reason)
    return _by_map(plan.step, plan.facts, args, auto, always_probe)


def _unknown_kinks(step: Step) -> list[str]:
    """The primitives for which every trajectory of a step would be dropped."""
    body = step.body
    jaxpr = cut_to(body.jaxpr.jaxpr, body.num_carry)
    begin, end = body.num_consts, body.num_consts + body.num_carry
    return unknown_kinks(jaxpr, [begin <= k < end for k in range(len(jaxpr.invars))])


def _by_map(
    step: Step,
    facts: Facts,
    args: Sequence[Any],
    auto: Auto,
    always_probe: bool,
) -> ForwardChoice:
    """What the map says of it, and a probe."""
    found = forward_map()
    speedup = functools.partial(found.speedup, facts, products=step.work.rows > 0)
    most = {name: speedup(method=name, iterations=1) for name in CANDIDATES}
    may = [name for name, s in most.items() if s is not None and s >= found.margin]
    none_pays = "" if may else _none_pays(most, found.margin)
    operands = None if none_pays and not always_probe else _values(step, args)
    if operands is None:
        unknown = "nothing is probed in a trace; pb.explain can, outside, and says what to name"
        return ForwardChoice(EXACT, none_pays or unknown)
    carry = step.body.carry_avals
    stop = stop_of(tolerance_of(auto, carry), carry)
    exponent, approach = step.probe(operands)
    rate = math.nan if math.isnan(exponent + approach) else max(exponent, approach)
    expected = {n: _expected(m, facts.length, rate, stop) for n, m in CANDIDATES.items()}
    chosen = functools.partial(
        ForwardChoice,
        exponent=exponent,
        comes_back=approach <= exponent / 2,
        probed=step.probe.steps,
        expected=expected,
    )
    if none_pays:
        return chosen(EXACT, none_pays)
    speeds: dict[str, float] = {}
    for name in may:
        if (k := expected[name]) is not None:
            speeds[name] = speedup(method=name, iterations=k) or 0.0
    best = max(speeds, key=speeds.__getitem__, default=None)
    if best is None or speeds[best] < found.margin:
        return chosen(EXACT, "it does not forget fast enough for a method to pay")
    gain = f"{speeds[best]:.2g} times as fast, to go by what was measured of its kind and sizes"
    return chosen(auto.certifying(CANDIDATES[best]), gain)


def _expected(method: Forward, length: int, rate: float, stop: float) -> int | None:
    return None if math.isnan(rate) else method.expected(length, rate, stop)


def _none_pays(most: Mapping[str, float | None], margin: float) -> str:
    known = {name: speedup for name, speedup in most.items() if speedup is not None}
    if not known:
        return "no recurrence of about its kind and sizes was measured"
    best = max(known, key=known.__getitem__)
    return (
        f"of its kind and sizes the fastest method was {best}, {known[best]:.2g} times as fast as "
        f"lax.scan; {margin:g} times is wanted"
    )


def _values(step: Step, args: Sequence[Any]) -> list[Any] | None:
    """The arguments of the scan equation; ``None`` where they are traced, or types alone.

    Those of a gradient outside of `jax.jit` are values.
    """
    if any(isinstance(v, jax.ShapeDtypeStruct) for v in args):
        return None
    operands = jax.lax.stop_gradient(step.staged.operands(args))
    return None if any(isinstance(v, jax.core.Tracer) for v in operands) else operands
