"""`solve`: a bi-diagonal system whose operators are in memory."""

from __future__ import annotations

import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.solvers.base import Solver, check_solver
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.system import Ragged, Uniform
from parscan_bp.types import Array


def solve(system: Uniform | Ragged, solver: Solver | None = None) -> Array | list[Array]:
    """Solves ``lambda[n] = g[n]``, ``lambda[t] = g[t] + A[t] lambda[t + 1]``.

    Args:
      system: operators and right-hand side.
      solver: a solver; ``None`` is `Sweep`, which needs no products.

    Returns:
      lambda in the form of g: an array (n + 1, *batch, features) for a `Uniform` system, a
      list of n + 1 vectors for a `Ragged` one.

    Raises:
      TypeError: if ``system`` is not a system, or ``solver`` not a solver.
      NotImplementedError: if the solver cannot take this structure.
      ValueError: if the solver would exceed its memory limit.

    Source: BPPSA (Wang, Bai, Pekhimenko, MLSys 2020), eq. 3 and section 3.1.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Dense
      >>> system = pb.Ragged([Dense(jnp.ones((3, 2)))], [jnp.zeros(3), jnp.ones(2)])
      >>> pb.solve(system, pb.Blelloch())[0].tolist()
      [2.0, 2.0, 2.0]
    """
    if not isinstance(system, Uniform | Ragged):
        raise TypeError(f"system: got {described(system)}; Uniform or Ragged is wanted")
    check_solver(solver, "ragged" if isinstance(system, Ragged) else "uniform")
    solver = Sweep() if solver is None else solver
    solver.check_nothing_kept()
    if isinstance(system, Ragged):
        for a in system.operators:
            solver.check(type(a), ragged=True)
        return solver.run_ragged(system)
    solver.check(type(system.operators))
    if system.length == 0:
        return system.g
    dtype = jnp.result_type(system.g.dtype, system.operators.dtype)
    zero = jnp.zeros(system.g.shape[1:], dtype)
    state, _, shown = solver.run(system, zero)
    return jnp.concatenate([(system.g[0] + state)[None], shown]).astype(dtype)
