"""Values and tangents of a scan in one loop, for as long as nothing is transposed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.primitives.pushforward import Pushforward, struct_of
from parscan_bp.primitives.zeros import filled, nonzero, zeros_of
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.trees import replace_at
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardMode:
    """Results of a scan, differentiated through their own program; see `Pushforward`.

    Attributes:
      scan: says what moves.
      avals: the types of the arguments.
      results: ``args -> results``, a pytree that begins with (carry, ys), after which may come the
        carry after every step and what else was kept.
      apart: the same with what `tangents` reads: ``args -> (results, known)``.
      tangents: ``(args, tangents, known) -> tangents of the results``.
    """

    scan: LinearScan
    avals: Sequence[Any]
    results: Callable[[list[Array]], PyTree]
    apart: Callable[[list[Array]], tuple[PyTree, Any]]
    tangents: Callable[[list[Array], list[Any], Any], PyTree]

    def __call__(self, args: list[Array], ts: list[Any]) -> tuple[PyTree, PyTree]:
        """The results and their tangents."""
        moving = nonzero(ts)
        push, floats, tree = self._pushforward(moving)
        made, pushed = push(args, [ts[k] for k in moving])
        out_ts = dict(zip(floats, pushed, strict=True))
        known = filled(made, [out_ts.get(k) for k in range(len(made))])
        return jax.tree.unflatten(tree, made), jax.tree.unflatten(tree, known)

    @functools.cached_property
    def _pushforward(self) -> Callable[..., tuple[Pushforward, tuple[int, ...], Any]]:
        """For tangents of some args; which results have any; the structure of these."""
        return functools.cache(self._make_pushforward)

    def _make_pushforward(self, moving):
        def together(args, ts):
            results = lambda *values: self.results(replace_at(args, moving, values))  # noqa: E731
            outs, out_ts = jax.jvp(results, [args[k] for k in moving], ts)
            pushed = jax.tree.leaves(out_ts)
            return jax.tree.leaves(outs), [pushed[k] for k in floats]

        def primal(args):
            made, known = self.apart(list(args))
            return jax.tree.leaves(made), known

        def tangent(args, known, ts):
            moved = replace_at(zeros_of(args), moving, ts)
            pushed = jax.tree.leaves(self.tangents(list(args), moved, known))
            return [pushed[k] for k in floats]

        types = list(map(struct_of, self.avals))
        closed, shape = jax.make_jaxpr(self.results, return_shape=True)(types)
        outs, still = closed.out_avals, self._still(moving)
        floats = tuple(k for k, a in enumerate(outs) if is_differentiable(a) and k not in still)
        in_ts = [self.avals[k].to_tangent_aval() for k in moving]
        out_ts = [outs[k].to_tangent_aval() for k in floats]
        push = Pushforward(together, primal, tangent, (list(self.avals), in_ts), (outs, out_ts))
        return push, floats, jax.tree.structure(shape)

    def _still(self, moving) -> set[int]:
        """Positions of results that do not move: in (carry, ys), and carries after every step."""
        n, m = self.scan.body.num_carry, len(self.scan.body.y_avals)
        carry, y = self.scan.moved(moving)
        carries = {k for k in range(n) if k not in carry}
        return carries | {n + j for j in range(m) if j not in y} | {n + m + k for k in carries}
