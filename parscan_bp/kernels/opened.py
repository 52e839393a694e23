"""Functions for the body of a kernel, which is never differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, Literal


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with those called that have derivatives of their own opened.

    The kernels of jax 0.11 take no `jax.custom_jvp`, such as `jax.nn.relu`.

    Args:
      function: of trees of arrays; without control flow in which such functions are.
    """

    def run(*args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)

        def of_leaves(*leaves: Any) -> Any:
            return function(*jax.tree.unflatten(tree, leaves))

        closed, shapes = jax.make_jaxpr(of_leaves, return_shape=True)(*flat)
        outs = _evaluate(closed.jaxpr, closed.consts, flat)
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return run


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        values, held = list(map(read, eqn.invars)), _held(eqn.params)
        if held is not None:
            outs = _evaluate(getattr(held, "jaxpr", held), getattr(held, "consts", ()), values)
        else:
            made = eqn.primitive.bind(*values, **eqn.params)
            outs = made if eqn.primitive.multiple_results else [made]
        known.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _held(params: dict[str, Any]) -> Any:
    """What a call runs: a function with a rule, or a jitted one, which may hold such."""
    return params["jaxpr"] if "donated_invars" in params else params.get("call_jaxpr")
