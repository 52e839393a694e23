"""The differentiation rule of the scan: one linear solve, for every order and mode.

The rule is a `jax.custom_jvp`. Its tangent is one linear solve on the *augmented*
system, whose unknowns are the input tangents together with what they cause:

    (dp, dc_0, dx, d, dc_n, dy)  with rows
    dp = b_p,  dc_0 = b_c,  dx = b_x,
    d_t - J_t d_{t-1} - f_p dp - f_x dx_t = b_d,
    dc_n - d_n = b_n,
    dy_t - h_c d_{t-1} - h_p dp - h_x dx_t = b_y.

Forward-mode is its solution for a right-hand side that holds input tangents only.
Reverse-mode is the solution of the transposed system, so one traversal yields the
carry cotangents and, chunk by chunk, the parameter gradients. Derivatives of any order
follow from the matrix-vector product above, which is written once and is plain JAX.
The Jacobian is formed inside the two solves and nowhere else. Where nothing is transposed any
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

from parscan_bp.autodiff.active import Active, replace_at
from parscan_bp.autodiff.body import is_differentiable
from parscan_bp.autodiff.by_products import ByProducts
from parscan_bp.autodiff.fused import FusedLoop
from parscan_bp.autodiff.linear_solve import LinearSolve, empty_of, tied_zeros
from parscan_bp.autodiff.linearise import Linearisation, Steps
from parscan_bp.autodiff.pushforward import Pushforward, is_forward_only, struct_of
from parscan_bp.autodiff.replay import vary_alike
from parscan_bp.autodiff.systems import Adjoint, Primal, Tangent
from parscan_bp.autodiff.trajectory import before, run_with_trajectory
from parscan_bp.solvers.base import Solver, default_chunk
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.structure import check_no_obstacle
from parscan_bp.trees import add, map_chunks
from parscan_bp.types import Array

BATCH_BYTES = (2**23, 2**23)
"""Bytes of a chunk without a loop inside that should stay in cache: only memory counts."""


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
    """

    equation: Any
    linearisation: Linearisation
    solver: Solver
    fused: FusedLoop | None = None
    one_loop: bool = False
    obstacle: str | None = None

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

        @jax.custom_jvp
        def values(args, extra):
            if self.fused is not None:
                carry, ys, _ = self.fused.run(*self._split(args))
                return [*carry, *ys]
            return self.equation.primitive.bind(*args, **self.equation.params)

        def jvp(primals, tangents):
            check_no_obstacle(self.obstacle, self.solver)
            if self.one_loop and is_forward_only(primals[0], tangents[0]):
                return self._push(primals[0], tangents[0], carries=False)
            active = self._active(tangents[0])
            outs, after, kept = self._with_trajectory(active if self.keeps else None)(*primals)
            return outs, self._tangents(primals, tangents, outs, after, kept)[0]

        values.defjvp(jvp, symbolic_zeros=True)
        return values

    @functools.cached_property
    def _run(self) -> Callable[[Active | None], Callable]:
        """(carry, ys), the carry after every step and what else is kept, as one program.

        It is made for a choice of active inputs, ``None`` where nothing else is kept.
        """
        return functools.cache(self._make_run)

    def _make_run(self, active):
        how = {k: self.equation.params[k] for k in ("length", "reverse", "unroll")}

        @jax.jit
        def run(args):
            if self.fused is not None:
                carry, ys, after = self.fused.run(*self._split(args))
                return [*carry, *ys], after, None
            consts, init, xs = self._split(args)
            keeping = None if active is None else self._keeping(consts, init, xs, active)
            if keeping is None:
                carry, ys, after, _ = run_with_trajectory(self.body, consts, init, xs, **how)
                return [*carry, *ys], after, None
            carry, ys, after, kept = run_with_trajectory(
                self.body, consts, init, xs, **how, keep=keeping.of_step
            )
            return [*carry, *ys], after, keeping.operator(kept)

        return run

    def _keeping(self, consts, init, xs, active):
        linear: Any = self.linearisation
        step = Steps(consts, init, [x[0] for x in xs], init, linear.invariants(consts, []))
        return linear.keeping(step, active)

    @functools.cached_property
    def _with_trajectory(self) -> Callable[[Active | None], Callable]:
        """`_run`, with derivatives; what is kept beside the carries has none."""
        return functools.cache(self._make_with_trajectory)

    def _make_with_trajectory(self, active):
        @jax.custom_jvp
        def values(args, extra):
            return self._run(active)(args)

        def jvp(primals, tangents):
            if self.through and is_forward_only(primals[0], tangents[0]):
                flat, pushed = self._push(primals[0], tangents[0], carries=True)
                n = len(self.equation.outvars)
                outs, after = flat[:n], flat[n:]
                out_ts = pushed[:n], pushed[n:]
                kept = None if active is None else self._run(active)(primals[0])[2]
            else:
                outs, after, kept = values(*primals)
                out_ts = self._tangents(primals, tangents, outs, after)
            none = lambda v: zero_from_primal(v, symbolic_zeros=True)  # noqa: E731
            return (outs, after, kept), (*out_ts, jax.tree.map(none, kept))

        values.defjvp(jvp, symbolic_zeros=True)
        return values

    def _push(self, args, ts, *, carries: bool):
        """Outputs and their tangents in one loop; with the carries after every step, if asked."""
        moving = _moving(ts)
        push, floats = self._pushforward(moving, carries)
        outs, pushed = push(args, [ts[k] for k in moving])
        out_ts = dict(zip(floats, pushed, strict=True))
        return outs, _fill(outs, [out_ts.get(k) for k in range(len(outs))])

    @functools.cached_property
    def _pushforward(self) -> Callable[..., tuple[Pushforward, tuple[int, ...]]]:
        """The scan with tangents of some args, and which of its outputs have any."""
        return functools.cache(self._make_pushforward)

    def _make_pushforward(self, moving, carries):
        def run(args):
            if carries:
                outs, after, _ = self._run(None)(args)
                return [*outs, *after]
            return self.equation.primitive.bind(*args, **self.equation.params)

        def together(args, ts):
            call = lambda *values: run(replace_at(args, moving, values))  # noqa: E731
            outs, out_ts = jax.jvp(call, [args[k] for k in moving], ts)
            return outs, [out_ts[k] for k in floats]

        def primal(args):
            outs, after, _ = self._with_trajectory(None)(list(args), [])
            return [*outs, *after] if carries else outs, (outs, after)

        def tangent(args, known, ts):
            zeros = [zero_from_primal(v, symbolic_zeros=True) for v in args]
            out_ts = self._tangents((args, []), (replace_at(zeros, moving, ts), []), *known)
            flat = [*out_ts[0], *out_ts[1]]
            return [flat[k] for k in floats]

        avals = [v.aval for v in self.equation.invars]
        outs = jax.make_jaxpr(run)(list(map(struct_of, avals))).out_avals
        floats = tuple(k for k, a in enumerate(outs) if is_differentiable(a))
        in_ts = [avals[k].to_tangent_aval() for k in moving]
        out_ts = [outs[k].to_tangent_aval() for k in floats]
        return Pushforward(together, primal, tangent, (avals, in_ts), (outs, out_ts)), floats

    def _split(self, args):
        a, b = self.body.num_consts, self.body.num_consts + self.body.num_carry
        return list(args[:a]), list(args[a:b]), list(args[b:])

    def _active(self, tangents) -> Active:
        consts, _, xs = self._split(tangents)
        return Active(_moving(consts), _moving(xs), self.body.float_y)

    def _tangents(self, primals, tangents, outs, after, kept=None):
        body = self.body
        given = [
            t if isinstance(t, SymbolicZero) else jnp.asarray(t, jnp.result_type(v))
            for t, v in zip(tangents[0], primals[0], strict=True)
        ]
        (args, extra), given, after, kept = vary_alike((primals, given, after, kept))
        consts, init, xs = self._split(args)
        t_consts, t_init, t_xs = self._split(given)

        active = self._active(given)
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
        *_, d, last, dy = self.solve(active)(residuals, b, kept)
        carry_t = dict(zip(body.float_carry, last, strict=True))
        after_t = dict(zip(body.float_carry, d, strict=True))
        y_t = dict(zip(body.float_y, dy, strict=True))
        y_t.update({j: after_t[k] for j, k in body.forwarded.items() if k in after_t})
        n = body.num_carry
        out_t = [(carry_t.get(k) if k < n else y_t.get(k - n)) for k in range(len(outs))]
        return _fill(outs, out_t), _fill(after, [after_t.get(k) for k in range(n)])

    @functools.cached_property
    def solve(self) -> Callable[[Active], Callable]:
        """The augmented solve for a choice of active inputs."""
        return functools.cache(self._make_solve)

    def _make_solve(self, active):
        primal = self._primal

        @jax.jit
        def matvec(residuals, u):
            consts, init, xs, d, last, dy = u
            scan = primal(residuals)
            entering = before(init, d, 0, scan.length, reverse=scan.reverse)

            def push(values):
                steps, entering, xs = values
                call, at = scan.outputs(dataclasses.replace(steps, consts=scan.consts), active)
                return jax.jvp(call, at, (consts, entering, xs))[1]

            steps = dataclasses.replace(scan.steps(0, scan.length), consts=[], extra=[])
            size = default_chunk(scan.length, scan.length * self.body.nbytes, BATCH_BYTES)
            pushed, ys = map_chunks(push, (steps, entering, xs), scan.length, size)
            end = 0 if scan.reverse else -1
            rows = (
                consts,
                init,
                xs,
                [a - b for a, b in zip(d, pushed, strict=True)],
                [a - b[end] for a, b in zip(last, d, strict=True)],
                [a - b for a, b in zip(dy, ys, strict=True)],
            )
            # Every row depends on every unknown and every residual, or a derivative of the
            # solve would have a right-hand side that is not linear in some leaf.
            tie = empty_of(u) * empty_of(residuals)
            return jax.tree.map(lambda row: row + tied_zeros(tie, row), rows)

        @jax.jit
        def forward(residuals, b, kept=None):
            del kept  # it is of the transposed steps
            consts, init, xs, d, last, dy = b
            system = Tangent(primal(residuals), active, consts, xs, d)
            linear = self.linearisation
            state, _, (d, ys) = self.solver.run(system, linear.pack(init, cotangent=False))
            end = linear.unpack(state, cotangent=False)
            return consts, init, xs, d, add(last, end), add(dy, ys)

        @jax.jit
        def backward(residuals, cts, kept=None):
            consts, init, xs, d, last, dy = cts
            scan, linear = primal(residuals, kept), self.linearisation
            if self.fused is not None and self.fused.adjoins:
                summed, start, stacked, lambdas = self.fused.adjoint(scan, active, d, last)
            else:
                state, summed, (stacked, lambdas) = self.solver.run(
                    Adjoint(scan, active, d, dy), linear.pack(last, cotangent=True)
                )
                start = linear.unpack(state, cotangent=True)
            summed = linear.const_cotangents(scan.consts, summed, active)
            return add(consts, summed), add(init, start), add(xs, stacked), lambdas, last, dy

        return LinearSolve(matvec, forward, backward, through=self.through, plain=self.through)

    def _primal(self, residuals, kept=None) -> Primal:
        consts, init, xs, after, extra = residuals
        extra = self.linearisation.invariants(consts, extra)
        length, reverse = (self.equation.params[k] for k in ("length", "reverse"))
        return Primal(self.linearisation, consts, init, xs, after, extra, kept, length, reverse)


def _moving(tangents) -> tuple[int, ...]:
    """Positions of the tangents that are not known to be zero."""
    return tuple(k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero))


def _fill(values, tangents):
    """Tangents with symbolic zeros where a value has none."""
    return [
        zero_from_primal(v, symbolic_zeros=True) if t is None else t
        for v, t in zip(values, tangents, strict=True)
    ]
