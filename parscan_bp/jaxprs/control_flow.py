"""Control flow whose inside is run in another way: as intervals, by other rules, of other types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.read import scan_counts
from parscan_bp.originals import lax_scan

RunProgram = Callable[[ClosedJaxpr, Sequence[Any]], Sequence[Any]]
"""``(jaxpr, values) -> its results``, in the types that these have in it, or a loop began with."""


def run_inside(eqn: JaxprEqn, values: Sequence[Any], run: RunProgram) -> list[Any]:
    """The results of control flow, what is inside of it being run in another way.

    Args:
      eqn: an equation of `cond`, `scan` or `while`.
      values: its operands: arrays, or pytrees of them.
      run: see `RunProgram`.
    """
    kinds = {"cond": _cond, "scan": _scan, "while": _while}
    return list(kinds[eqn.primitive.name](eqn, values, run))


def _cond(eqn, values, run):
    branches = [lambda *v, b=b: run(b, v) for b in eqn.params["branches"]]
    return lax.switch(values[0], branches, *values[1:])


def _scan(eqn, values, run):
    consts, carry = scan_counts(eqn)
    first, xs = consts + carry, values[consts + carry :]

    def step(c, x):
        out = run(eqn.params["jaxpr"], [*values[:consts], *c, *x])
        return out[:carry], out[carry:]

    how = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    last, ys = lax_scan(step, list(values[consts:first]), list(xs), **how)
    return [*last, *ys]


def _while(eqn, values, run):
    test, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    tested, stepped = values[:test], values[test : test + body]
    return lax.while_loop(
        lambda carry: run(eqn.params["cond_jaxpr"], [*tested, *carry])[0],
        lambda carry: run(eqn.params["body_jaxpr"], [*stepped, *carry]),
        list(values[test + body :]),
    )
