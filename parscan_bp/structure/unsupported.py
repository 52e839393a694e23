"""Steps for which the linear model does not hold, and the primitive that is to blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import JaxprEqn
from jax.interpreters import ad

from parscan_bp.jaxprs.hijax import kind_of, operation_of
from parscan_bp.jaxprs.interpret import Interpreter
from parscan_bp.jaxprs.primitive_kinds import CALLBACKS, HI_PRIMITIVE, NOT_REPEATABLE
from parscan_bp.jaxprs.read import (
    holds_tracers,
    inner_jaxprs,
    is_inexact,
    names_axis,
    open_jaxpr,
    touches_ref,
    walk,
)
from parscan_bp.structure.base import Reason

ALONG_MAPPED_AXIS = "works along a mapped axis (vmap or shard_map)"
"""The message of `unsupported` for collectives and `axis_index`, which have no side effect."""


def unsupported(jaxpr: Any, active: Sequence[bool] | None = None) -> list[Reason]:
    """Why a step cannot be differentiated through the linear system; empty if it can.

    Looked for at every depth:

    - `custom_vjp_call`: its derivative exists in reverse only, the differentiation rule here is a
      forward one;
    - `custom_jvp_call` whose rule closes over traced values: JAX has no derivative by these;
    - `while` of dynamic length whose float results depend on active inputs: it has no transpose
      (a `fori_loop` with static bounds is a `scan`, and fine);
    - effects (`jax.debug.print`, `io_callback`) and mutable arrays: a body that is linearised,
      recomputed and batched would repeat them;
    - collectives along an axis of an outer `vmap` or `shard_map`, and `axis_index`: a solver that
      was named may take them, see `couples_mapped_axis`;
    - what gives another result when it is made again (`jax.lax.rng_uniform`);
    - callbacks that are fed an active value: they have no derivative;
    - an operation that is a `HiPrim` and not JAX's own: nothing is known of it.

    Args:
      jaxpr: the scan body, Jaxpr or ClosedJaxpr.
      active: which inputs are differentiated; None means all. Inputs of integer, boolean or key
        dtype never are.

    Returns:
      One `Reason` for each distinct primitive and message, in order of appearance.

    Example:
      >>> import jax
      >>> f = lambda x: jax.lax.while_loop(lambda v: v < 9.0, lambda v: v * v, x)
      >>> [r.primitive for r in unsupported(jax.make_jaxpr(f)(2.0))]
      ['while']
    """
    opened = open_jaxpr(jaxpr)
    flags = [True] * len(opened.invars) if active is None else list(active)
    if len(flags) != len(opened.invars):
        raise ValueError(
            f"active: got {len(flags)} flags for a jaxpr of {len(opened.invars)} inputs; "
            "pass one per flat input, or None for all of them."
        )
    found: dict[Reason, None] = {}
    for eqn in walk(opened):
        found.update(dict.fromkeys(_syntactic(eqn)))
    activity = _Activity()
    pairs = zip(opened.invars, flags, strict=True)
    activity.run(opened, [bool(flag) and is_inexact(v) for v, flag in pairs])
    found.update(activity.found)
    return list(found)


def _syntactic(eqn: JaxprEqn) -> list[Reason]:
    name = kind_of(eqn)
    if name == "custom_vjp_call":
        return [Reason(name, "has a reverse-mode derivative only, so it cannot be linearised")]
    if name == "custom_jvp_call" and holds_tracers(eqn):
        return [Reason(name, "has a rule that closes over traced values; make them its arguments")]
    if name in NOT_REPEATABLE:
        return [Reason(name, "gives other numbers when it is made again")]
    if name == HI_PRIMITIVE:
        operation = type(operation_of(eqn)).__name__
        return [Reason(operation, "is a HiPrim and not JAX's own, and may mix the rows of a batch")]
    if touches_ref(eqn):
        return [Reason(name, "reads or writes a mutable array")]
    # An equation that holds jaxprs shows their effects as its own: blame the innermost one.
    if not eqn.effects or any(inner.effects for inner in inner_jaxprs(eqn)):
        return []
    if all(map(names_axis, eqn.effects)):
        return [Reason(name, ALONG_MAPPED_AXIS)]
    return [Reason(name, "has a side effect, which recomputation would repeat")]


def couples_mapped_axis(jaxpr: Any, num_consts: int, num_carry: int) -> Reason | None:
    """The collective through which carry' depends on the carry of other entries of a mapped axis.

    Then no Jacobian per entry exists. A collective of inputs, or of what only enters the outputs,
    couples no carries, nor does `axis_index`.

    Args:
      jaxpr: body with flat inputs [consts..., carry..., xs...], outputs [carry'..., ys...].
      num_consts, num_carry: numbers of constants and of carry leaves.

    Returns:
      ``None`` if there is none.
    """
    name = _on_the_way(jaxpr, num_consts, num_carry, lambda eqn: any(map(names_axis, eqn.effects)))
    message = "couples the carries of a mapped axis, so that no Jacobian per entry exists"
    return name and Reason(name, f"{message}; Sweep() with jacobian='auto' needs none")


def underivable(jaxpr: Any, num_consts: int, num_carry: int) -> Reason | None:
    """The primitive without a derivative through which carry' depends on the carry, if any.

    Args:
      jaxpr, num_consts, num_carry: see `couples_mapped_axis`.
    """
    name = _on_the_way(
        jaxpr, num_consts, num_carry, lambda eqn: eqn.primitive not in ad.primitive_jvps
    )
    return name and Reason(name, "is given a value that moves with the carry and has no derivative")


def _on_the_way(
    jaxpr: Any, num_consts: int, num_carry: int, blamed: Callable[[JaxprEqn], bool]
) -> Any:
    """A primitive that is to blame between the carry and carry'; ``None`` if there is none."""
    opened, way = open_jaxpr(jaxpr), _Way(blamed)
    carried = range(num_consts, num_consts + num_carry)
    ins = [k in carried and is_inexact(v) for k, v in enumerate(opened.invars)]
    way.run(opened, ins, [k < num_carry for k in range(len(opened.outvars))])
    return way.found


class _Way(Interpreter[bool]):
    """True: the value has a tangent that depends on the carry's."""

    derivative = True
    prune = True
    bottom = False

    def __init__(self, blamed: Callable[[JaxprEqn], bool]) -> None:
        super().__init__()
        self.blamed = blamed
        self.found: str | None = None

    def equation(self, eqn: JaxprEqn, ins: list[bool], live: list[bool]) -> list[bool]:
        if self.blamed(eqn):
            self.found = kind_of(eqn)
        return [True] * len(eqn.outvars)

    def join(self, a: bool, b: bool, name: str) -> bool:
        return a or b


class _Activity(Interpreter[bool]):
    """True: the value has a tangent that may be non-zero."""

    derivative = True
    prune = False
    bottom = False

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Reason, None] = {}

    def equation(self, eqn: JaxprEqn, ins: list[bool], live: list[bool]) -> list[bool]:
        return [True] * len(eqn.outvars)

    def join(self, a: bool, b: bool, name: str) -> bool:
        return a or b

    def after(self, eqn: JaxprEqn, ins: list[bool], outs: list[bool]) -> None:
        name = kind_of(eqn)
        if name == "while" and any(outs):
            message = "has a trip count that is not static, so it cannot be transposed"
            self.found[Reason(name, message)] = None
        if name in CALLBACKS:
            self.found[Reason(name, "is given a differentiated value but has no derivative")] = None
