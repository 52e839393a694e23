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
from typing import TYPE_CHECKING

import jax

from parscan_bp.linearise.active import Active
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.primitives.zeros import empty_of, instantiated, is_zero, tied_zeros
from parscan_bp.scan.parts import backward_part
from parscan_bp.scan.systems import Adjoint, Primal, Tangent
from parscan_bp.scan.trajectory import before
from parscan_bp.trees import add

if TYPE_CHECKING:
    from parscan_bp.scan.rule import ScanRule


@dataclasses.dataclass(frozen=True, eq=False)
class Augmented:
    """The system of a scan for a choice of active inputs.

    Residuals are ``(consts, init, xs, after, extra)``: the arguments of the scan, the carry after
    every step, and what a given Jacobian closes over.

    Attributes:
      rule: the scan.
      active: what is differentiated.
    """

    rule: ScanRule
    active: Active

    def solve(self) -> LinearSolve:
        """Its solution, with the transposed one."""
        alone = not self.rule.body.float_carry
        return LinearSolve(
            jax.jit(self.matvec),
            jax.jit(self._forward_outputs if alone else self._forward),
            jax.jit(self._backward_outputs if alone else self._backward),
            through=self.rule.through,
            plain=self.rule.through,
            sees_zeros=True,
            backward_part=functools.cache(functools.partial(backward_part, self.rule, self.active)),
            reads=self._reads(),
        )

    def _reads(self) -> tuple[bool, ...]:
        """For consts, init, xs and after, whether the system has a derivative by each leaf."""
        body = self.rule.body
        consts, carry, x = body.reach.backward(body.float_carry, self.active.y)
        sizes = (body.num_consts, body.num_carry, len(body.x_avals), body.num_carry)
        pairs = zip(sizes, (consts, carry, x, carry), strict=True)
        return tuple(k in read for size, read in pairs for k in range(size))

    def primal(self, residuals, kept=None) -> Primal:
        """The scan that is differentiated."""
        consts, init, xs, after, extra = residuals
        linear, params = self.rule.linearisation, self.rule.equation.params
        extra = linear.invariants(consts, extra)
        length, reverse = params["length"], params["reverse"]
        return Primal(linear, consts, init, xs, after, extra, kept, length, reverse)

    def matvec(self, residuals, u):
        """The rows above."""
        consts, init, xs, d, last, dy = u
        scan = self.primal(residuals)
        entering = before(init, d, 0, scan.length, reverse=scan.reverse)

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
        system = Tangent(self.primal(residuals), self.active, consts, xs, d)
        linear, solver = self.rule.linearisation, self.rule.solver
        state, _, (d, ys) = solver.run(system, linear.pack(init, cotangent=False))
        end = linear.unpack(state, cotangent=False)
        return consts, init, xs, d, add(last, end), add(dy, ys)

    def _backward(self, residuals, cts, kept=None):
        consts, init, xs, d, last, dy = instantiated(cts)
        kept = None if kept is None else kept.when(self.active)
        scan, rule = self.primal(residuals, kept), self.rule
        linear = rule.linearisation
        moving = linear.unread(self.active) if all(map(is_zero, cts[-1])) else self.active
        if rule.fused is not None and rule.fused.adjoins:
            summed, start, stacked, lambdas = rule.fused.adjoint(scan, moving, d, last)
        else:
            system = Adjoint(scan, moving, cts[3], dy if moving.y else [])
            packed = linear.pack(last, cotangent=True)
            state, summed, (stacked, lambdas) = rule.solver.run(system, packed)
            start = linear.unpack(state, cotangent=True)
        summed = linear.const_cotangents(scan.consts, summed, moving)
        return add(consts, summed), add(init, start), add(xs, stacked), lambdas, last, dy

    def _outputs(self, residuals):
        """The outputs as a function of consts and inputs, where no carry is an unknown."""
        scan = self.primal(residuals)

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
