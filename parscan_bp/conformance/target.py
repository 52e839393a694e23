"""The scan that is tried, by its dotted name, with options, in the contract of `jax.lax.scan`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.conformance.problem import Scan

LOOP = ("reverse", "unroll")
"""Arguments that a scan may not have: steps are then run forwards, and none is unrolled."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What is tried.

    Attributes:
      name: ``package.module:function``, with its options.
      scan: in the contract of `jax.lax.scan`.
      reverses: whether it takes ``reverse``.
    """

    name: str
    scan: Scan
    reverses: bool


def target_of(name: str, options: Sequence[str] = (), solver: str | None = None) -> Target:
    """The function that a name means.

    Args:
      name: ``package.module:function``.
      options: ``NAME=VALUE`` each, keywords of the function; Python literals, or else strings.
      solver: a solver of `parscan_bp`, ``Sweep`` or ``Chunked(chunks=3)``, for its ``solver=``.

    Raises:
      ValueError: if a name or an option is none.

    Example:
      >>> target_of("parscan_bp:scan", solver="Sweep(chunk=4)").scan.keywords
      {'solver': Sweep(chunk=4)}
    """
    module, colon, attributes = name.partition(":")
    if not colon:
        raise ValueError(f"scan: got {name!r}; package.module:function is wanted")
    try:
        found: Any = functools.reduce(
            getattr, attributes.split("."), importlib.import_module(module)
        )
    except (ImportError, AttributeError) as error:
        raise ValueError(f"scan: got {name!r}; {error}") from None
    keywords = dict(map(_option, options))
    if solver is not None:
        keywords["solver"] = _solver(solver)
    if name in ADAPTERS:
        found = ADAPTERS[name](found)
    told = " ".join([name, *options, *([] if solver is None else [solver])])
    scan = functools.partial(_as_offered(found), **keywords)
    return Target(told, scan, takes(found, "reverse"))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"with: got {text!r}; NAME=VALUE is wanted")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _solver(text: str) -> Any:
    """A solver as one would write it."""
    wanted = "a solver of parscan_bp is wanted, as Sweep or Chunked(chunks=3)"
    try:
        call = ast.parse(text, mode="eval").body
        name, arguments = (call.func, call.keywords) if isinstance(call, ast.Call) else (call, [])
        solvers = importlib.import_module("parscan_bp.solvers")
        kind = getattr(solvers, ast.unparse(name))
        return kind(**{str(k.arg): ast.literal_eval(k.value) for k in arguments})
    except (SyntaxError, AttributeError, ValueError) as error:
        raise ValueError(f"solver: got {text!r} ({error}); {wanted}") from None


def takes(scan: Callable, name: str) -> bool:
    """Whether a function has an argument of this name, as far as one can see."""
    try:
        names = inspect.signature(scan).parameters
    except (TypeError, ValueError):
        return True
    return name in names or any(p.kind is p.VAR_KEYWORD for p in names.values())


def _as_offered(scan: Callable) -> Scan:
    """The scan itself, or without ``unroll`` and ``reverse``, if its signature has them not."""
    left_out = [name for name in LOOP if not takes(scan, name)]
    if not left_out:
        return scan

    def offered(f, init, xs=None, length=None, reverse=False, unroll=1, **options):
        given = {"reverse": reverse, "unroll": unroll, **options}
        if reverse and "reverse" in left_out:
            raise TypeError("reverse: got True, which this scan does not take")
        for name in left_out:
            del given[name]
        return scan(f, init, xs, length, **given)

    return offered


def from_nnx(nnx_scan: Callable) -> Scan:
    """`flax.nnx.scan`, which makes a loop of a step, as a call of that loop.

    What is scanned over is an argument of the loop if there is anything, and none otherwise.
    """
    carry = importlib.import_module("flax.nnx").Carry

    def scan(f, init, xs=None, length=None, reverse=False, unroll=1, **options):
        how = {"length": length, "reverse": reverse, "unroll": unroll, **options}
        if jax.tree.leaves(xs):
            loop = nnx_scan(f, in_axes=(carry, 0), out_axes=(carry, 0), **how)
            return loop(init, xs)
        loop = nnx_scan(lambda c: f(c, xs), in_axes=carry, out_axes=(carry, 0), **how)
        return loop(init)

    return scan


ADAPTERS: dict[str, Callable[[Callable], Scan]] = {"flax.nnx:scan": from_nnx}
"""What has another contract, and is called by a few lines."""
