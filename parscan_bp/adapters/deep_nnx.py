"""Recurrent layers of `flax.nnx` in a row as one recurrence. Needs Flax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from parscan_bp.arguments import check_bool, described
from parscan_bp.deep_rnn import check_carries, deep_rnn
from parscan_bp.scan import custom_vjp_scan, scan
from parscan_bp.solvers import Solver, check_solver
from parscan_bp.types import Array, PyTree


class DeepRNN(nnx.Module):
    """Layers `flax.nnx.RNN` in a row as one recurrence, by the doubly bi-diagonal system.

    Values and derivatives are those of

        for cell in cells:
            inputs = flax.nnx.RNN(cell)(inputs)

    up to rounding; only that all layers make a step before any makes the next one. Solvers that
    multiply operators get block-triangular ones, see `parscan_bp.deep_rnn`: over a sequence of n a
    tree has O(log k log n) levels. With ``solver=None`` that is not what a CPU wants; one `RNN`
    after the other has less work there, too, by whatever solver.

    Args:
      cells: k cells of `flax.nnx`, or of one's own, the outputs of each being the inputs of the
        next. Their carries, arrays (*batch, features) or pytrees of them, have as many features in
        each, and their rows are independent.
      time_major, return_carry, unroll: as in `flax.nnx.RNN`.
      solver: as in `parscan_bp.scan`.
      report: whether a call returns a pair: what it would otherwise, and a `Report`.
      custom_vjp: whether a call is one `jax.custom_vjp`, reverse mode only, as by
        `parscan_bp.custom_vjp_scan`.

    Raises:
      TypeError: if ``cells`` is no sequence of cells.
      ValueError: if it is empty; when called, if carries have other sizes.
      NotImplementedError: when called, if a cell changes its variables or takes more than one axis
        of features.

    Source: M. Naumov, 2017, sections 2.2 and 3.1.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> import parscan_bp as pb, parscan_bp.nnx
      >>> cells = [nnx.GRUCell(size, 4, rngs=nnx.Rngs(0)) for size in (3, 4)]
      >>> model = parscan_bp.nnx.DeepRNN(cells, solver=pb.CyclicReduction())
      >>> model(jnp.ones((2, 10, 3))).shape
      (2, 10, 4)
    """

    def __init__(
        self,
        cells: Sequence[nnx.RNNCellBase],
        *,
        time_major: bool = False,
        return_carry: bool = False,
        unroll: int = 1,
        solver: Solver | None = None,
        report: bool = False,
        custom_vjp: bool = False,
    ):
        if isinstance(cells, str) or not isinstance(cells, Sequence):
            raise TypeError(f"cells: got {described(cells)}; a list or tuple of cells is wanted")
        for k, cell in enumerate(cells):
            if not isinstance(cell, nnx.RNNCellBase):
                raise TypeError(f"cells[{k}]: got {described(cell)}; a cell of nnx is wanted")
        if not cells:
            raise ValueError("cells: got none; at least 1 is wanted")
        check_solver(solver, "uniform")
        for name, value in (
            ("time_major", time_major),
            ("return_carry", return_carry),
            ("report", report),
            ("custom_vjp", custom_vjp),
        ):
            check_bool(name, value)
        self.cells = nnx.List(cells)
        self.time_major = time_major
        self.return_carry = return_carry
        self.unroll = unroll
        self.solver = solver
        self.report = report
        self.custom_vjp = custom_vjp

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: Sequence[PyTree] | None = None,
        rngs: nnx.Rngs | None = None,
    ):
        """Applies all cells along the time axis.

        Args:
          inputs: (*batch, time, features), or (time, *batch, features) if ``time_major``.
          initial_carry: the carries of all cells; ``None`` is what each one's ``initialize_carry``
            makes.
          rngs: for that; ``None`` is ``nnx.Rngs(0)``.

        Returns:
          The outputs of the last layer, or ``(carries, outputs)`` with ``return_carry``; with the
          layer's ``report``, a pair of that and a `Report`.
        """
        steps = [_step_of(cell, k) for k, cell in enumerate(self.cells)]
        step, jacobian = deep_rnn(steps)
        xs = inputs if self.time_major else jnp.moveaxis(inputs, -2, 0)
        if initial_carry is None:
            rngs = nnx.Rngs(0) if rngs is None else rngs
            x = jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
            carry = _initial(list(self.cells), steps, x, rngs)
        else:
            carry = tuple(initial_carry)
            check_carries("initial_carry", carry, len(steps))
        run = custom_vjp_scan if self.custom_vjp else scan
        carry, ys, *told = run(
            step,
            carry,
            xs,
            unroll=self.unroll,
            solver=self.solver,
            jacobian=jacobian,
            report=self.report,
        )
        ys = ys if self.time_major else jnp.moveaxis(ys, 0, -2)
        result = (carry, ys) if self.return_carry else ys
        return (result, *told) if self.report else result


def _step_of(cell: nnx.RNNCellBase, k: int) -> Callable[[PyTree, Array], tuple[PyTree, Array]]:
    """The cell as a function of arrays."""
    if cell.num_feature_axes != 1:
        raise NotImplementedError(
            f"cells[{k}]: {type(cell).__name__} has {cell.num_feature_axes} axes of features; "
            "1 is wanted"
        )
    graphdef, state = nnx.split(cell)

    def step(h: PyTree, x: Array) -> tuple[PyTree, Array]:
        own = nnx.merge(graphdef, state, copy=True)
        result = own(h, x)
        before, after = (jax.tree.leaves(s) for s in (state, nnx.state(own)))
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            raise NotImplementedError(
                f"cells[{k}]: {type(cell).__name__} changes its variables when it is called, "
                "statistics or a stream of random numbers; parscan_bp.nnx.RNN takes it"
            )
        return result

    return step


def _initial(cells, steps, x, rngs) -> tuple[PyTree, ...]:
    """The first carries; ``x`` is the type of the input of a step."""
    carries = []
    for k, (cell, step) in enumerate(zip(cells, steps, strict=True)):
        carries.append(cell.initialize_carry(x.shape, rngs))
        try:
            _, x = jax.eval_shape(step, carries[-1], x)
        except (TypeError, ValueError) as error:
            of = f"the outputs of cells[{k - 1}]" if k else "inputs of a step"
            raise ValueError(
                f"cells[{k}]: {type(cell).__name__} does not take {of}, of shape {x.shape}: {error}"
            ) from error
    check_carries("cells", carries, len(steps))
    return tuple(carries)
