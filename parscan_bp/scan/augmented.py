"""The augmented system of a scan: its tangents, and those of the inputs that cause them.

Its unknowns are (dp, dc_0, dx, d, dc_n, dy), with rows

    dp = b_p,  dc_0 = b_c,  dx = b_x,
    d_t - J_t d_{t-1} - f_p dp - f_x dx_t = b_d,
    dc_n - d_n = b_n,
    dy_t - h_c d_{t-1} - h_p dp - h_x dx_t = b_y.

Forward-mode is its solution for a right-hand side that holds input tangents only. Reverse-mode is
the solution of the transposed system, so one traversal yields the carry cotangents and, chunk by
chunk, the parameter gradients. Derivatives of any order follow from the matrix-vector product
above, which is written once and is plain JAX. The Jacobian is formed inside the two solves and
nowhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence

import jax

from parscan_bp.jaxprs.differentiated import slopes_read
from parscan_bp.jaxprs.read import differentiable
from parscan_bp.linearise.body import Active
from parscan_bp.primitives.linear_solve import LinearSolve, SubSystem
from parscan_bp.primitives.zeros import empty_of, instantiated, is_zero, tied_zeros
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.systems import Adjoint, Tangent
from parscan_bp.solvers.results import checked_sum, solved
from parscan_bp.trees import add


def augmented_solve(scan: LinearScan, active: Active) -> LinearSolve:
    """The solution of the system of a scan for a choice of active inputs; made once."""
    if active not in scan.solves:
        scan.solves[active] = _Augmented(scan, active).solve()
    return scan.solves[active]


@dataclasses.dataclass(frozen=True, eq=False)
class _Augmented:
    """The system of a scan for a choice of active inputs.

    Residuals are ``(consts, init, xs, after, extra)``: the arguments of the scan, the carry after
    every step, and what a given Jacobian closes over.

    Attributes:
      scan: the scan.
      active: what is differentiated.
    """

    scan: LinearScan
    active: Active

    def solve(self) -> LinearSolve:
        """Its solution, with the transposed one."""
        alone = not self.scan.body.float_carry
        return LinearSolve(
            jax.jit(self.matvec),
            jax.jit(self._forward_outputs if alone else self._forward),
            jax.jit(self._backward_outputs if alone else self._backward),
            through=self.scan.through,
            plain=self.scan.through,
            sees_zeros=True,
            backward_part=functools.cache(functools.partial(_part, self.scan, self.active)),
            unread=functools.cache(self._unread),
            is_own=self._is_own,
        )

    def _unread(self) -> frozenset[int]:
        """The leaves of consts, init, xs and after by which the step's derivative has none.

        Without rules of their own derivatives commute: those by which the step has none.
        """
        body, active = self.scan.body, self.active
        if body.has_rules:
            outs = (*body.float_carry, *(body.num_carry + j for j in active.y))
            try:
                read = slopes_read(body.jaxpr, self._moving, outs)
            except NameError:  # an axis of an outer `jax.vmap`, not bound here: all may be read
                return frozenset()
        else:
            sizes = (body.num_consts, body.num_carry, len(body.x_avals))
            parts = zip(sizes, body.reach.backward(body.float_carry, active.y), strict=True)
            read = tuple(k in part for size, part in parts for k in range(size))
        consts, carry, x = body.split(read)
        return frozenset(k for k, r in enumerate([*consts, *carry, *x, *carry]) if not r)

    @property
    def _moving(self) -> tuple[int, ...]:
        """The inputs of the step that move."""
        a, b = self.scan.body.num_consts, self.scan.body.num_consts + self.scan.body.num_carry
        carry = (a + k for k in self.scan.body.float_carry)
        return (*self.active.consts, *carry, *(b + k for k in self.active.x))

    def _is_own(self) -> bool:
        """Whether the step is after any derivative what it was, so that its program may be read.

        A solve linearises it by the carry alone. Of the rules that parameters and inputs reach only
        `matvec` runs all.
        """
        moving = differentiable(self.scan.body.jaxpr.in_avals)
        try:
            return self.scan.after_derivative(moving) is self.scan
        except NameError:  # an axis of an outer `jax.vmap`, not bound here; it is where `matvec` is
            return False

    def matvec(self, residuals, u):
        """The rows above."""
        consts, init, xs, d, last, dy = u
        scan = self.scan.primal(residuals)
        entering = self.scan.before(init, d)

        def push(steps, values):
            entering, xs = values
            call, at = scan.outputs(steps, self.active)
            return jax.jvp(call, at, (consts, entering, xs))[1]

        pushed, ys = scan.map(push, (entering, xs))
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

    def _forward(self, residuals, b, kept=None):
        del kept  # it is of the transposed steps
        consts, init, xs, d, last, dy = instantiated(b)
        system = Tangent(self.scan.primal(residuals), self.active, consts, xs, d)
        linear = self.scan.linearisation
        state, _, (d, ys) = solved(self.scan.solver, system, linear.pack(init, cotangent=False))
        end = linear.unpack(state, cotangent=False)
        return consts, init, xs, d, add(last, end), add(dy, ys)

    def _backward(self, residuals, cts, kept=None):
        consts, init, xs, _, last, dy = instantiated(cts)
        kept = None if kept is None else kept.when(self.active)
        scan, primal = self.scan, self.scan.primal(residuals, kept)
        linear = scan.linearisation
        moving = linear.unread(self.active) if all(map(is_zero, cts[-1])) else self.active
        if scan.adjoint is not None:
            summed, start, stacked, lambdas = scan.adjoint(primal, moving, cts[3], last)
        else:
            system = Adjoint(primal, moving, cts[3], dy if moving.y else [])
            packed = linear.pack(last, cotangent=True)
            state, summed, (stacked, lambdas) = solved(scan.solver, system, packed)
            start = linear.unpack(state, cotangent=True)
        summed = linear.const_cotangents(primal.consts, summed, moving)
        consts, xs = (checked_sum(scan.solver, *pair) for pair in ((consts, summed), (xs, stacked)))
        return consts, add(init, start), xs, lambdas, last, dy

    def _outputs(self, residuals):
        """The outputs as a function of consts and inputs, where no carry is an unknown."""
        scan = self.scan.primal(residuals)

        def outputs(consts, xs):
            def some(steps, xs):
                return scan.outputs(steps, self.active)[0](consts, [], xs)[1]

            return scan.map(jax.checkpoint(some), xs)

        return outputs, (self.active.of_consts(scan.consts), self.active.of_x(scan.xs))

    def _forward_outputs(self, residuals, b, kept=None):
        consts, init, xs, d, last, dy = instantiated(b)
        outputs, at = self._outputs(residuals)
        return consts, init, xs, d, last, add(dy, jax.jvp(outputs, at, (consts, xs))[1])

    def _backward_outputs(self, residuals, cts, kept=None):
        consts, init, xs, d, last, dy = instantiated(cts)
        outputs, at = self._outputs(residuals)
        summed, stacked = jax.vjp(outputs, *at)[1](dy)
        return add(consts, summed), init, add(xs, stacked), d, last, dy


def _part(scan: LinearScan, active: Active, nonzero: Sequence[bool]) -> SubSystem:
    """What cotangents reach that are not zero.

    Args:
      scan, active: see `_Augmented`.
      nonzero: for each leaf of the right-hand side of the transposed system, whether it is other
        than zero.
    """
    floats, flags = scan.body.float_carry, iter(nonzero)
    groups = (active.consts, floats, active.x, floats, floats, active.y)
    *_, d, last, dy = [[next(flags) for _ in group] for group in groups]
    start = [k for k, a, b in zip(floats, d, last, strict=True) if a or b]
    y = tuple(itertools.compress(active.y, dy))
    consts, carry, x = scan.body.reach.backward(start, y)
    smaller = scan.restricted(_those(floats, carry))
    part = Active(_those(active.consts, consts), _those(active.x, x), y)
    solved = smaller.body.float_carry if start or y else ()
    left = (part.consts, solved, part.x, solved, solved, y)
    reached = tuple(k in kept for group, kept in zip(groups, left, strict=True) for k in group)
    if smaller is scan and y == active.y:
        return SubSystem(None, None, reached)
    b = jax.tree.structure(tuple(map(list, left)))
    return SubSystem(augmented_solve(smaller, part), b, reached, hinted=smaller is scan)


def _those(positions: Sequence[int], kept: Collection[int]) -> tuple[int, ...]:
    return tuple(k for k in positions if k in kept)
