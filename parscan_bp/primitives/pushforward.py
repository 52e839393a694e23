"""Values and tangents in one loop, for as long as nothing is transposed.

The tangent of a scan is a linear solve of its own (`rule`), so that reverse-mode can
transpose it. Where a program asks for tangents only, that costs a second loop, which
evaluates every step again, and the carries of all steps in between. A *pushforward*
stands for values and tangents together and has two forms: ``together``, one loop that
keeps nothing, in which it is run; and ``apart``, which takes its place as soon as JAX
separates what depends on the tangents from what does not, or differentiates it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from parscan_bp.primitives.mapping import at_front, vmapped
from parscan_bp.primitives.separation import as_equation, separate, separate_within
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pushforward:
    """A function with tangents, as functions of ``(args, tangents of some args)``.

    Attributes:
      together: ``(args, ts) -> (outs, out_ts)`` at once.
      primal: ``args -> (outs, known)``, what does not depend on the tangents.
      tangent: ``(args, known, ts) -> out_ts``, which can be transposed.
      takes: types of args and ts.
      gives: types of outs and out_ts.
    """

    together: Callable[..., tuple[list[Array], list[Array]]]
    primal: Callable[..., tuple[list[Array], Any]]
    tangent: Callable[..., list[Array]]
    takes: tuple[list[Any], list[Any]]
    gives: tuple[list[Any], list[Any]]

    def __call__(
        self, args: Sequence[Array], ts: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """``(outs, out_ts)``."""
        out = _pushforward_p.bind(*args, *ts, pushforward=self)
        return out[: len(self.gives[0])], out[len(self.gives[0]) :]

    @functools.cached_property
    def run_together(self) -> Callable[..., list[Array]]:
        """``together`` of one flat sequence of values."""

        @jax.jit
        def scan_with_tangents(*values):
            outs, out_ts = self.together(*self._split(values))
            return [*outs, *out_ts]

        return scan_with_tangents

    @functools.cached_property
    def run_apart(self) -> Callable[..., list[Array]]:
        """The same as a program that can be separated."""

        @jax.jit
        def scan_and_tangents(*values):
            args, ts = self._split(values)
            outs, known = self.primal(args)
            return [*outs, *self.tangent(args, known, ts)]

        return scan_and_tangents

    @functools.cached_property
    def apart(self) -> JaxprEqn:
        """`run_apart` as one equation, whose rules for partial evaluation are JAX's own."""
        return as_equation(self.run_apart, [*map(struct_of, itertools.chain(*self.takes))])

    @functools.cached_property
    def _batched(self) -> dict[Any, Pushforward]:
        """What `batched` returned before."""
        return {}

    def batched(self, dims: tuple[int | None, ...], how: Any) -> Pushforward:
        """The same under `jax.vmap`, for values with a leading axis where ``dims`` has a 0.

        All results have the axis but for the outs if no arg has it.
        """
        key = (dims, how.size, how.name, how.spmd_name)
        if key not in self._batched:
            self._batched[key] = self._make_batched(dims, how)
        return self._batched[key]

    def _make_batched(self, dims, how):
        arg_dims, t_dims = self._split(dims)
        out = None if all(d is None for d in arg_dims) else 0

        def together(args, ts):
            return vmapped(self.together, (arg_dims, t_dims), how, (out, 0))(args, ts)

        def primal(args):
            return (
                self.primal(args) if out is None else vmapped(self.primal, (arg_dims,), how)(args)
            )

        def tangent(args, known, ts):
            return vmapped(self.tangent, (arg_dims, out, t_dims), how)(args, known, ts)

        def stacked(avals, dims):
            lead = [() if d is None else (how.size,) for d in dims]
            types = [struct_of(a, n) for a, n in zip(avals, lead, strict=True)]
            return jax.make_jaxpr(lambda *v: v)(*types).in_avals

        (args, ts), (outs, out_ts) = self.takes, self.gives
        takes = stacked(args, arg_dims), stacked(ts, t_dims)
        gives = stacked(outs, [out] * len(outs)), stacked(out_ts, [0] * len(out_ts))
        return Pushforward(together, primal, tangent, takes, gives)

    def _split(self, values):
        n = len(self.takes[0])
        return list(values[:n]), list(values[n:])


def struct_of(aval: Any, lead: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    """A type, with more leading axes, as an argument to trace a function with."""
    return jax.ShapeDtypeStruct((*lead, *aval.shape), aval.dtype, weak_type=aval.weak_type)


_pushforward_p = Primitive("pushforward")
_pushforward_p.multiple_results = True


@_pushforward_p.def_impl
def _run(*values, pushforward):
    return pushforward.run_together(*values)


@_pushforward_p.def_abstract_eval
def _types(*avals, pushforward):
    return [*itertools.chain(*pushforward.gives)]


def _differentiate(primals, tangents, *, pushforward):
    moving = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def run(*values):
        return pushforward.run_apart(*replace_at(primals, moving, values))

    return jax.jvp(run, [primals[k] for k in moving], [tangents[k] for k in moving])


def _batch(how, values, dims, *, pushforward):
    if all(d is None for d in dims):
        out = _pushforward_p.bind(*values, pushforward=pushforward)
        return out, [None] * len(out)
    front = [at_front(v, d) for v, d in zip(values, dims, strict=True)]
    mapped = pushforward.batched(tuple(None if d is None else 0 for d in dims), how)
    out = _pushforward_p.bind(*front, pushforward=mapped)
    args = dims[: len(mapped.takes[0])]
    plain = len(mapped.gives[0]) if all(d is None for d in args) else 0
    return out, [None] * plain + [0] * (len(out) - plain)


def _separate(trace, *tracers, pushforward):
    return separate(pushforward.apart, trace, tracers)


def _separate_equation(saveable, unknown, instantiated, eqn):
    apart = eqn.params["pushforward"].apart
    return separate_within(apart, saveable, unknown, instantiated, eqn)


mlir.register_lowering(
    _pushforward_p,
    mlir.lower_fun(lambda *values, pushforward: pushforward.run_together(*values), True),
)
ad.primitive_jvps[_pushforward_p] = _differentiate
batching.fancy_primitive_batchers[_pushforward_p] = _batch
pe.custom_partial_eval_rules[_pushforward_p] = _separate
pe.partial_eval_jaxpr_custom_rules[_pushforward_p] = _separate_equation


def is_forward_only(args: Sequence[Any], ts: Sequence[Any]) -> bool:
    """Whether nothing separates the tangents so far, and no mesh is in the types."""
    if any(isinstance(t, pe.JaxprTracer) for t in ts):
        return False
    types = [jax.typeof(v) for v in args]
    return not any(getattr(t, "vma", None) or not t.sharding.mesh.empty for t in types)
