"""The differentiation rule of the scan: one linear solve, for every order and mode.

The rule is a `WithRule`. Its tangent is one linear solve on the *augmented* system (`augmented`),
whose unknowns are the input tangents together with what they cause. Where nothing is transposed any
more there are shorter ways: tangents alone are one loop (`pushforward`), where the solver is
left to us, and those of a gradient come from the sweep's own program (`linear_solve`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.obstacles import check_no_obstacle, replicated_output
from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.linearise.active import Active
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.products import ByProducts
from parscan_bp.linearise.residuals import ResidualMap, Residuals
from parscan_bp.originals import lax_scan
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.primitives.pushforward import Pushforward, is_forward_only, struct_of
from parscan_bp.primitives.with_rule import WithRule
from parscan_bp.primitives.zeros import empty_of, filled, nonzero, tied_zeros, zeros_of
from parscan_bp.scan.augmented import Augmented
from parscan_bp.scan.components import solve_by_components
from parscan_bp.scan.fused import FusedLoop
from parscan_bp.scan.trajectory import before, run_with_trajectory
from parscan_bp.solvers.base import Solver, TreeSolver
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.trees import replace_at
from parscan_bp.types import Array


@dataclasses.dataclass(frozen=True, eq=False)
class ScanRule:
    """A traced scan with its derivatives. Functions are made once, so that JAX caches them.

    Attributes:
      equation: the traced `lax.scan`, bound as it is for the values.
      linearisation: how the step's Jacobian is obtained.
      solver: what solves the bi-diagonal system.
      fused: the kernels that make the values, if the caller asked for them.
      one_loop: whether forward-mode is `lax.scan`'s own loop, not a solve.
      obstacle: what keeps a solver from derivatives, if anything does.
      hoist: what the step makes of its constants alone, if anything; the linearised body, and the
        loops of derivatives, get it as constants.
      whole: the rule of which this one is `restricted`, if it is.
    """

    equation: Any
    linearisation: Linearisation
    solver: Solver
    fused: FusedLoop | None = None
    one_loop: bool = False
    obstacle: str | None = None
    hoist: Hoist | None = None
    whole: ScanRule | None = None

    @property
    def body(self):
        return self.linearisation.body

    @property
    def through(self) -> bool:
        """Whether the sweep's own program may be differentiated: it is made of the step's."""
        by_products = isinstance(self.linearisation, ByProducts)
        return isinstance(self.solver, Sweep) and by_products and self.fused is None

    @property
    def keeps(self) -> bool:
        """Whether the forward pass keeps the linearised steps for the backward pass."""
        return self.solver.keeps

    def __call__(self, args: Sequence[Array], extra: Sequence[Array]) -> list[Array]:
        """The outputs of the scan for ``args = [*consts, *init, *xs]``."""
        return self._values(list(args), list(extra))

    @functools.cached_property
    def _values(self):
        """(carry, ys): exactly the equation that `lax.scan` makes, or the fused kernel."""

        def values(args, extra):
            if self.fused is not None:
                carry, ys, _ = self.fused.run(*self._split(args))
                return [*carry, *ys]
            return self.equation.primitive.bind(*args, **self.equation.params)

        def jvp(primals, tangents):
            check_no_obstacle(self.obstacle, self.solver)
            given, (primals, (ts, extra_ts)) = primals, self._hoisted(primals, tangents)
            ts = self._effective(primals[0], ts)
            rule = self._of_moving(ts)
            if rule is None:
                outs = self(*given)
                return outs, zeros_of(outs)
            return rule._values_and_tangents(primals, (ts, extra_ts))

        return WithRule(values, jvp)

    def _values_and_tangents(self, primals, tangents):
        """The outputs and their tangents, for the arguments of the loop."""
        active = self._active(tangents[0]) if self.keeps else None
        if self.one_loop and is_forward_only(primals[0], tangents[0]):
            made, pushed = self._push(primals[0], tangents[0], active, trajectory=False)
            return made[0], pushed[0]
        made = self._with_trajectory(active)(*primals)
        return made[0], self._tangents(primals, tangents, made)[0]

    def _effective(self, args, tangents):
        """The tangents, zero where nothing has a derivative by the argument."""
        kept = self.body.reach.depends.any(0)
        zeros = zeros_of(args)
        return [t if k else zero for t, k, zero in zip(tangents, kept, zeros, strict=True)]

    def _of_moving(self, tangents) -> ScanRule | None:
        """The rule for the carry leaves that these tangents move; ``None`` if nothing moves."""
        carry, y = self._moved(nonzero(tangents))
        return self.restricted(carry) if carry or y else None

    def _moved(self, moving):
        """The carry leaves and outputs that have tangents if the args at these positions do."""
        a, b = self.body.num_consts, self.body.num_consts + self.body.num_carry
        consts = [k for k in moving if k < a]
        carry = [k - a for k in moving if a <= k < b]
        return self.body.reach.forward(consts, carry, [k - b for k in moving if k >= b])

    def restricted(self, carry: tuple[int, ...]) -> ScanRule:
        """The rule for these carry leaves alone; for all where their Jacobian is not to be had."""
        whole = self if self.whole is None else self.whole
        if carry == whole.body.float_carry or self.fused is not None:
            return whole
        if carry not in whole._restricted:
            linear, rule = whole.linearisation.restricted(carry), whole
            if linear is not None:
                rule = dataclasses.replace(whole, linearisation=linear, whole=whole)
            whole._restricted[carry] = rule
        return whole._restricted[carry]

    @functools.cached_property
    def _restricted(self) -> dict[tuple[int, ...], ScanRule]:
        return {}

    def _hoisted(self, primals, tangents):
        """The arguments of the loop, from those of the traced equation."""
        if self.hoist is None:
            return primals, tangents
        (args, extra), (ts, extra_ts), n = primals, tangents, self.hoist.num_consts
        consts, t_consts = self.hoist.push(args[:n], ts[:n])
        return ([*consts, *args[n:]], extra), ([*t_consts, *ts[n:]], extra_ts)

    @functools.cached_property
    def _run(self) -> Callable[[Active | None], Callable]:
        """(carry, ys), the carry after every step and what else is kept, as one program.

        It is made for a choice of active inputs, ``None`` where nothing else is kept.
        """
        return functools.cache(self._make_run)

    def _make_run(self, active):
        how = self._how

        @jax.jit
        def run(args):
            if self.fused is not None:
                carry, ys, after = self.fused.run(*self._split(args))
                return [*carry, *ys], after, None
            consts, init, xs = self._split(args)
            if active is None:
                carry, ys, after, _ = run_with_trajectory(self.body, consts, init, xs, **how)
                return [*carry, *ys], after, None
            extra = self.linearisation.invariants(consts, [])
            keeping = self._keeping(Steps(consts, init, [x[0] for x in xs], init, extra), active)
            keep = _keep(keeping, consts, extra)
            carry, ys, after, values = run_with_trajectory(
                self.body, consts, init, xs, **how, keep=keep
            )
            return [*carry, *ys], after, Residuals(values, keeping)

        return run

    def _keeping(self, step: Steps, active: Active) -> ResidualMap:
        """What is kept of steps of these types; always the same object, as pytrees are compared."""
        avals = map(jax.typeof, jax.tree.leaves(step))
        key = (active, *(aval.update(weak_type=False) for aval in avals))
        if key not in self._keepings:
            linear: Any = self.linearisation
            sweep: Any = self.solver
            at_once = functools.partial(sweep.at_once, self.equation.params["length"])
            self._keepings[key] = linear.residuals(step, active, at_once)
        return self._keepings[key]

    @functools.cached_property
    def _keepings(self) -> dict[Any, ResidualMap]:
        return {}

    @functools.cached_property
    def _with_trajectory(self) -> Callable[[Active | None], Callable]:
        """`_run`, with derivatives."""
        return functools.cache(self._make_with_trajectory)

    def _make_with_trajectory(self, active):
        def run(args, extra):
            return self._run(active)(args)

        def jvp(primals, tangents):
            moves = self._of_moving(tangents[0]) is not None
            if moves and self.through and is_forward_only(primals[0], tangents[0]):
                return self._push(primals[0], tangents[0], active, trajectory=True)
            made = values(*primals)
            return made, self._all_tangents(primals, tangents, made)

        values = WithRule(run, jvp)
        return values

    def _push(self, args, ts, active, *, trajectory: bool):
        """The results of `_run` and their tangents, in one loop.

        Without a ``trajectory``, only the outputs; ``None`` for the others.
        """
        moving = nonzero(ts)
        push, floats, tree = self._pushforward(moving, active, trajectory)
        made, pushed = push(args, [ts[k] for k in moving])
        out_ts = dict(zip(floats, pushed, strict=True))
        known = filled(made, [out_ts.get(k) for k in range(len(made))])
        return jax.tree.unflatten(tree, made), jax.tree.unflatten(tree, known)

    @functools.cached_property
    def _pushforward(self) -> Callable[..., tuple[Pushforward, tuple[int, ...], Any]]:
        """The scan with tangents of some args; which of its results have any; their structure."""
        return functools.cache(self._make_pushforward)

    def _make_pushforward(self, moving, active, trajectory):
        def results(args):
            if trajectory:
                return self._run(active)(args)
            return self._loop(args), None, None

        def wanted(made):
            return jax.tree.leaves(made if trajectory else made[0])

        def together(args, ts):
            call = lambda *values: wanted(results(replace_at(args, moving, values)))  # noqa: E731
            outs, out_ts = jax.jvp(call, [args[k] for k in moving], ts)
            return outs, [out_ts[k] for k in floats]

        def primal(args):
            made = self._with_trajectory(active)(list(args), [])
            return wanted(made), made

        def tangent(args, made, ts):
            moved = replace_at(zeros_of(args), moving, ts)
            pushed = wanted(self._all_tangents((args, []), (moved, []), made))
            return [pushed[k] for k in floats]

        avals = [v.aval for v in self.equation.invars]
        if self.hoist is not None:
            n = self.hoist.num_consts
            avals[n:n] = self.hoist.made.out_avals
        closed, shape = jax.make_jaxpr(results, return_shape=True)(list(map(struct_of, avals)))
        outs, n = closed.out_avals, self.body.num_carry
        carry, y = self._moved(moving)
        still = {k for k in range(n) if k not in carry}
        still |= {n + j for j in range(len(self.body.y_avals)) if j not in y}
        still |= {k + n + len(self.body.y_avals) for k in still if k < n}
        floats = tuple(k for k, a in enumerate(outs) if is_differentiable(a) and k not in still)
        in_ts = [avals[k].to_tangent_aval() for k in moving]
        out_ts = [outs[k].to_tangent_aval() for k in floats]
        push = Pushforward(together, primal, tangent, (avals, in_ts), (outs, out_ts))
        return push, floats, jax.tree.structure(shape)

    def _loop(self, args):
        """(carry, ys) of `lax.scan`."""
        if self.hoist is None:
            return self.equation.primitive.bind(*args, **self.equation.params)
        consts, init, xs = self._split(args)
        carry, ys = lax_scan(lambda c, x: self.body(consts, c, x), init, xs, **self._how)
        return [*carry, *ys]

    @property
    def _how(self) -> dict[str, Any]:
        return {name: self.equation.params[name] for name in ("length", "reverse", "unroll")}

    def _split(self, args):
        a, b = self.body.num_consts, self.body.num_consts + self.body.num_carry
        return list(args[:a]), list(args[a:b]), list(args[b:])

    def _active(self, tangents) -> Active:
        consts, _, xs = self._split(tangents)
        _, y = self._moved(nonzero(tangents))
        return Active(nonzero(consts), nonzero(xs), tuple(j for j in self.body.float_y if j in y))

    def _tangents(self, primals, tangents, made):
        """Tangents of the outputs and of the carry after every step."""
        body, (outs, after, kept) = self.body, made
        given = [
            t if isinstance(t, SymbolicZero) else jnp.asarray(t, jnp.result_type(v))
            for t, v in zip(tangents[0], primals[0], strict=True)
        ]
        (args, extra), given, after, kept = vary_alike((primals, given, after, kept))
        consts, init, xs = self._split(args)
        t_consts, t_init, t_xs = self._split(given)

        active = self._active(given)
        read = map(jax.typeof, [outs[body.num_carry + j] for j in active.y])
        check_no_obstacle(replicated_output(read, map(jax.typeof, after)), self.solver)
        residuals = (consts, init, xs, after, extra)
        known = [
            *active.of_consts(t_consts),
            *(t for t in t_init if not isinstance(t, SymbolicZero)),
            *active.of_x(t_xs),
        ]
        tie = empty_of(known)
        start = [
            tied_zeros(tie, init[k]) if isinstance(t_init[k], SymbolicZero) else t_init[k]
            for k in body.float_carry
        ]
        b = (
            active.of_consts(t_consts),
            start,
            active.of_x(t_xs),
            [tied_zeros(tie, after[k]) for k in body.float_carry],
            [tied_zeros(tie, after[k], entry=True) for k in body.float_carry],
            [tied_zeros(tie, outs[body.num_carry + j]) for j in active.y],
        )
        groups = self._groups
        if len(groups) > 1:
            d, last, dy = solve_by_components(self, groups, active, residuals, b)
        else:
            *_, d, last, dy = self.solve(active)(residuals, b, kept)
        carry_t = dict(zip(body.float_carry, last, strict=True))
        after_t = dict(zip(body.float_carry, d, strict=True))
        y_t = dict(zip(active.y, dy, strict=True))
        y_t.update({j: after_t[k] for j, k in body.forwarded.items() if k in after_t})
        n, (moved, _) = body.num_carry, self._moved(nonzero(given))
        carry_t, after_t = ({k: t[k] for k in moved} for t in (carry_t, after_t))
        out_t = [(carry_t.get(k) if k < n else y_t.get(k - n)) for k in range(len(outs))]
        return filled(outs, out_t), filled(after, [after_t.get(k) for k in range(n)])

    @functools.cached_property
    def _groups(self) -> Sequence[tuple[int, ...]]:
        """The carry leaves in systems of their own, see `components`."""
        floats, linear = self.body.float_carry, self.linearisation
        apart = isinstance(self.solver, TreeSolver) and not getattr(linear, "diagonal", False)
        groups = self.body.reach.components(floats) if apart else [floats]
        together = any(self.restricted(group) is self for group in groups)
        return [floats] if together else groups

    def _all_tangents(self, primals, tangents, made):
        """Tangents of what `_with_trajectory` made: what is kept is a function of the rest."""
        outs, after, kept = made
        args, ts = primals[0], tangents[0]
        # More may move than what was differentiated first.
        rule = self._of_moving(ts)
        if rule is None:
            return jax.tree.map(lambda v: zero_from_primal(v, symbolic_zeros=True), made)
        usable = kept if rule is self else None
        out_ts, after_ts = rule._tangents(primals, tangents, (outs, after, usable))
        if kept is None:
            return out_ts, after_ts, None
        moving = nonzero(ts)
        floats = [k for k in rule.body.float_carry if k in self._moved(moving)[0]]

        def values(moved, carries):
            consts, init, xs = self._split(replace_at(args, moving, moved))
            now = replace_at(after, floats, carries)
            reverse = self.equation.params["reverse"]
            entering = before(init, now, 0, len(now[0]), reverse=reverse)
            extra = self.linearisation.invariants(consts, [])
            return jax.vmap(_keep(kept.map, consts, extra))(entering, xs, now)

        at = [args[k] for k in moving], [after[k] for k in floats]
        _, pushed = jax.jvp(values, at, ([ts[k] for k in moving], [after_ts[k] for k in floats]))
        pushed = [None if t.dtype == jax.dtypes.float0 else t for t in pushed]
        return out_ts, after_ts, Residuals(filled(kept.values, pushed), kept.map)

    @functools.cached_property
    def solve(self) -> Callable[[Active], LinearSolve]:
        """The augmented solve for a choice of active inputs."""
        return functools.cache(lambda active: Augmented(self, active).solve())


def _keep(keeping: ResidualMap, consts, extra) -> Callable[..., list[Array]]:
    """``(carry, x, new_carry) -> what is kept`` of a step."""
    return lambda carry, x, new: keeping.of_step(Steps(consts, carry, x, new, extra))
