"""One abstract interpreter of jaxprs; what it computes is a subclass's domain.

It walks the equations once, goes into calls and control flow, and iterates loops to their least
fixed point. A domain says what a value is, how two of them join where control flow meets, and what
an ordinary primitive does. The domains are dependence (`dependence.py`), precision
(`precision.py`), activity (`unsupported.py`), axis labels (`axes.py`) and the places of units
(`elementwise.py`).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar, Generic, TypeVar

from jax.extend.core import Jaxpr, JaxprEqn, Var

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, CUSTOM_CALLS, FORWARD_CALLS, ZERO_DERIVATIVE
from parscan_bp.jaxprs.read import (
    called_jaxpr,
    is_inexact,
    live_variables,
    open_jaxpr,
    scan_counts,
    tangent_jaxpr,
)

V = TypeVar("V")


class Interpreter(abc.ABC, Generic[V]):
    """Runs a jaxpr on abstract values.

    A value that says "does not depend on any input of interest" is `bottom`, the only falsy one:
    an equation whose operands are all bottom has bottom results and is never looked at.
    """

    derivative: ClassVar[bool]  # follow tangents only (float and complex), or values of any dtype
    prune: ClassVar[bool]  # skip equations whose tangents no wanted output needs
    bottom: V

    def __init__(self) -> None:
        self._tangents: dict[Any, Any] = {}
        self._linear = False

    @abc.abstractmethod
    def equation(self, eqn: JaxprEqn, ins: list[V], live: list[bool]) -> list[V]:
        """The results of a primitive that is not a call and not control flow."""

    @abc.abstractmethod
    def join(self, a: V, b: V, name: str) -> V:
        """The least value above both, where the control flow of primitive `name` meets."""

    def after(self, eqn: JaxprEqn, ins: list[V], outs: list[V]) -> None:
        """Called with every equation that has an operand above bottom."""

    def unstack(self, xs: V) -> V:
        """One slice of a scanned-over operand."""
        return xs

    def scanned(self, others: list[V], xs: list[V]) -> Any:
        """What `stack` needs to know about the scanned axis."""

    def stack(self, y: V, scanned: Any) -> V:
        """The stacked result of a scan from one slice."""
        return y

    def run(self, jaxpr: Any, ins: Sequence[V], live: Sequence[bool] | None = None) -> list[V]:
        """The values of the outputs of `jaxpr`, of which only those marked `live` are wanted."""
        jaxpr = open_jaxpr(jaxpr)
        needed = None
        if self.prune:
            without = ZERO_DERIVATIVE if self._opens_rules else ()
            needed = live_variables(jaxpr, live or [True] * len(jaxpr.outvars), without)
        env: dict[Var, V] = dict(zip(jaxpr.invars, ins, strict=True))
        for eqn in jaxpr.eqns:
            mask = [needed is None or v in needed for v in eqn.outvars]
            args = [self._read(env, atom) for atom in eqn.invars]
            if not any(args) or not (any(mask) or needed is None):
                continue
            if self._opens_rules and kind_of(eqn) in ZERO_DERIVATIVE:
                continue
            outs = self._dispatch(eqn, args, mask)
            if self.derivative:
                pairs = zip(eqn.outvars, outs, strict=True)
                outs = [out if is_inexact(v) else self.bottom for v, out in pairs]
            self.after(eqn, args, outs)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [self._read(env, atom) for atom in jaxpr.outvars]

    def _read(self, env: dict[Var, V], atom: Any) -> V:
        return env.get(atom, self.bottom) if isinstance(atom, Var) else self.bottom

    def _dispatch(self, eqn: JaxprEqn, args: list[V], live: list[bool]) -> list[V]:
        name = kind_of(eqn)
        if name in CALLS:
            return self.run(called_jaxpr(eqn), args, live)
        if name in CUSTOM_CALLS and not self._opens_rules:
            return self.run(called_jaxpr(eqn), args, live)
        if name in FORWARD_CALLS:
            return self.tangent_call(eqn, args, live)
        if name == "scan":
            return self._scan(eqn, args, live)
        if name == "while":
            return self._while(eqn, args)
        if name == "cond":
            return self._cond(eqn, args, live)
        return self.equation(eqn, args, live)

    @property
    def _opens_rules(self) -> bool:
        """Whether derivatives are followed through programs that need not be linear."""
        return self.derivative and not self._linear

    def tangent_call(self, eqn: JaxprEqn, args: list[V], live: list[bool]) -> list[V]:
        """The results of a call that brings its own derivative, from what its rule does.

        That is linear in the tangents: what becomes of them is what is done with their values. So
        rules are not opened inside of rules, of which there may be no end: that of a linear
        function applies the function itself to the tangent.
        """
        values = {v: a for v, a in zip(eqn.invars, args, strict=True) if isinstance(v, Var) and a}
        wanted = zip(eqn.outvars, live, strict=True)
        outs = [v for v, used in wanted if used and is_inexact(v) and type(v) is Var]
        # A loop comes here several times. The equation is kept, so that its id stays its own.
        key = (id(eqn), tuple(values), tuple(outs))
        if key not in self._tangents:
            self._tangents[key] = (eqn, *tangent_jaxpr(eqn, list(values), outs))
        _, operands, program = self._tangents[key]
        self._linear = True
        results = self.run(program, [self.bottom] * len(operands) + list(values.values()))
        self._linear = False
        found = dict(zip(outs, results, strict=True))
        return [found.get(v, self.bottom) for v in eqn.outvars]

    def _scan(self, eqn: JaxprEqn, args: list[V], live: list[bool]) -> list[V]:
        num_consts, num_carry = scan_counts(eqn)
        start = num_consts + num_carry
        consts, carry, xs = args[:num_consts], args[num_consts:start], args[start:]
        rows = [self.unstack(x) for x in xs]
        inner_live = [True] * num_carry + live[num_carry:]
        while True:
            outs = self.run(eqn.params["jaxpr"], consts + carry + rows, inner_live)
            joined = self._join_all(carry, outs[:num_carry], "scan")
            if joined == carry:
                break
            carry = joined
        scanned = self.scanned(consts + carry, xs)
        return carry + [self.stack(y, scanned) for y in outs[num_carry:]]

    def _while(self, eqn: JaxprEqn, args: list[V]) -> list[V]:
        test, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test_consts, body_consts = args[:test], args[test : test + body]
        carry = args[test + body :]
        while True:
            outs = self.run(eqn.params["body_jaxpr"], body_consts + carry)
            joined = self._join_all(carry, outs, "while")
            if not self.derivative:
                predicate = self.run(eqn.params["cond_jaxpr"], test_consts + carry)
                joined = self._join_all(joined, predicate * len(joined), "while")
            if joined == carry:
                return carry
            carry = joined

    def _cond(self, eqn: JaxprEqn, args: list[V], live: list[bool]) -> list[V]:
        predicate, *operands = args
        branches: tuple[Jaxpr, ...] = eqn.params["branches"]
        outs = [self.run(branch, operands, live) for branch in branches]
        joined = reduce(lambda a, b: self._join_all(a, b, "cond"), outs)
        if self.derivative:
            return joined
        return self._join_all(joined, [predicate] * len(joined), "cond")

    def _join_all(self, a: list[V], b: list[V], name: str) -> list[V]:
        return [self.join(u, v, name) for u, v in zip(a, b, strict=True)]


class DerivativeInterpreter(Interpreter[V]):
    """Follows tangents, those of this package's own rules through the programs they are of."""

    derivative = True
    prune = False

    def tangent_call(self, eqn: JaxprEqn, ins: list[V], live: list[bool]) -> list[V]:
        # Its rule is the derivative of its program, and made of solves, which hide their inside.
        if kind_of(eqn) == "call_with_rule":
            return self.run(called_jaxpr(eqn), ins, live)
        return super().tangent_call(eqn, ins, live)
