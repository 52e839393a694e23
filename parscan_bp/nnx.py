"""The recurrent layers and `Sequential` of `flax.nnx`, derivatives by a solver. Needs Flax."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from parscan_bp.adapters.fixed import is_fixed
from parscan_bp.adapters.flax_cells import NNX, view_of
from parscan_bp.adapters.masking import Masked, masked_for, with_mask
from parscan_bp.adapters.nnx_block import as_block as as_block
from parscan_bp.adapters.nnx_pipeline import Pipeline as Pipeline
from parscan_bp.arguments import check_bool
from parscan_bp.explain import Explanation, explain_calls
from parscan_bp.forward import Auto, Forward
from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.scan import Fused
from parscan_bp.scan.api import checked_solver
from parscan_bp.scan.values.options import checked_forward
from parscan_bp.scan.within import solve_within
from parscan_bp.solvers import Solver, check_has_all_steps
from parscan_bp.types import Array, PyTree

try:
    from flax import nnx
    from flax.nnx import RNN as FlaxRNN
    from flax.nnx.transforms.general import merge_inputs, split_inputs

    from parscan_bp.adapters.deep_nnx import DeepRNN as DeepRNN
    from parscan_bp.adapters.divided_nnx import Conv as Conv
    from parscan_bp.adapters.divided_nnx import Linear as Linear
    from parscan_bp.adapters.nnx_sequential import Sequential as Sequential
except ImportError as error:
    raise ImportError(
        "parscan_bp.nnx needs Flax, which is not installed: pip install 'parscan_bp[flax]'"
    ) from error

__all__ = [
    "RNN",
    "Bidirectional",
    "Conv",
    "DeepRNN",
    "Linear",
    "Pipeline",
    "Sequential",
    "as_block",
]

Rngs = nnx.Rngs | nnx.RngStream


class RNN(FlaxRNN):
    """`flax.nnx.RNN` whose derivatives come from a solver; the cell is any cell of nnx.

    It is Flax's own layer: arguments, attributes, state, random streams, errors and values
    are those of Flax, bit for bit. Only the equation of its loop is replaced.
    An eager call of a layer with a cell of Flax, and
    functions of JAX and Flax in it, is not traced again for arguments of types that came before; a
    cell of one's own, which may read what changes, is traced at every eager call, as by Flax.

    Args:
      cell: a cell of `flax.nnx`, or of one's own.
      time_major, return_carry, reverse, keep_order, unroll, state_axes, broadcast_rngs, rngs:
        as in `flax.nnx.RNN`.
      solver: as in `parscan_bp.scan`; of the cells of Flax ``Sweep(recompute=False)`` keeps what
        Flax keeps. A cell that the linear model does not hold runs through `jax.lax.scan` itself
        with ``None``, and raises `NotImplementedError` with a named one.
      forward: as in `parscan_bp.scan`; "fused" takes, on a GPU, the cells of Flax that are ours in
        another arrangement, without a mask. Values are Flax's bit for bit where it is "exact".
      memory_limit: as in `parscan_bp.scan`, bytes.
      report: whether a call returns a pair: what it would otherwise, and the `Report` of
        `parscan_bp.scan`. A layer within another, as in `Bidirectional`, is not to.
      custom_vjp: whether a call is one `jax.custom_vjp`, reverse mode only, as by
        `parscan_bp.custom_vjp_scan`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> import parscan_bp.nnx
      >>> rnn = parscan_bp.nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))  # was: nnx.RNN
      >>> rnn(jnp.ones((2, 10, 3))).shape
      (2, 10, 4)
      >>> rnn.explain(jnp.ones((2, 10, 3))).structure
      'block'
    """

    def __init__(
        self,
        cell: nnx.RNNCellBase,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int = 1,
        state_axes: Mapping[str, int | type[nnx.Carry] | None] | None = None,
        broadcast_rngs: nnx.filterlib.Filter = None,
        rngs: Rngs | bool = True,
        solver: Solver | None = None,
        forward: str | Fused | Forward | Auto = "exact",
        memory_limit: int | MemoryLimit | None = None,
        report: bool = False,
        custom_vjp: bool = False,
    ):
        super().__init__(
            cell,
            time_major=time_major,
            return_carry=return_carry,
            reverse=reverse,
            keep_order=keep_order,
            unroll=unroll,
            state_axes=state_axes,
            broadcast_rngs=broadcast_rngs,
            rngs=rngs,
        )
        checked_solver(solver, "auto", memory_limit)
        checked_forward(forward, report)
        check_bool("report", report)
        check_bool("custom_vjp", custom_vjp)
        self.solver = solver
        self.forward = forward
        self.memory_limit = memory_limit
        self.report = report
        self.custom_vjp = custom_vjp

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | None = None,
        mask: Array | None = None,
        reset: Array | None = None,
    ):
        """Applies the cell along the time axis.

        Args:
          inputs: (*batch, time, *features), or (time, *batch, *features) if ``time_major``.
          initial_carry, seq_lengths, return_carry, time_major, reverse, keep_order, rngs: as
            in `flax.nnx.RNN`. Steps beyond ``seq_lengths`` are run, as there.
          mask: booleans of the inputs' axes without features. Where false, the step is the
            identity on the carry, its output is zero, and its input is not looked at.
            Variables of the cell are not masked. With ``seq_lengths`` both hold: of the first
            so many steps those that are masked do nothing, and the lengths say which carry is
            returned, and within what a sequence is reversed.
          reset: the same. Where true, a new segment begins at this step: the carry does not
            enter it (and, in reverse, does not leave it to the step before) but is zero.

        Returns:
          The outputs, or ``(carry, outputs)`` with ``return_carry``; with the layer's ``report``,
          a pair of that and a `Report`.

        Raises:
          ValueError: if a mask or a reset does not fit.
          NotImplementedError: for ``reverse`` or ``seq_lengths`` with a `parscan_bp.Sharded` solver
            inside of `jax.shard_map` or `jax.pmap`.
          flax.errors.TraceContextError: if the layer is closed over by a transformation of JAX.
        """
        options = {
            "return_carry": self.return_carry if return_carry is None else bool(return_carry),
            "time_major": self.time_major if time_major is None else bool(time_major),
            "reverse": self.reverse if reverse is None else bool(reverse),
            "keep_order": self.keep_order if keep_order is None else bool(keep_order),
        }
        used = {"reverse": options["reverse"], "seq_lengths": seq_lengths is not None}
        check_has_all_steps(self.solver, **used)
        cell, sequence = self.cell, with_mask(inputs, mask, reset)
        if isinstance(sequence, Masked):
            sequence = sequence.directed(
                cell.num_feature_axes,
                time_major=options["time_major"],
                reverse=options["reverse"],
                seq_lengths=seq_lengths,
            )
            cell = _MaskedCell(cell)
        layer = FlaxRNN(
            cell,
            unroll=self.unroll,
            state_axes=self.state_axes,
            broadcast_rngs=self.broadcast_rngs,
            rngs=False,
            **options,
        )
        # Flax leaves the layer's own stream alone where a carry is given.
        if rngs is None and initial_carry is None:
            rngs = self.rngs
        _check_can_change(layer, rngs)
        view = view_of(cell, NNX, nnx)
        forward = _forward if view is None else _forward_with_params
        how: dict[str, Any] = {"solver": self.solver, "forward": self.forward, "view": view}
        how |= {"memory_limit": self.memory_limit}
        how |= {"anew": not is_fixed((layer, rngs)), "report": self.report}
        how |= {"custom_vjp": self.custom_vjp}
        run = split_inputs(functools.partial(_solve, forward, **how))
        return run(layer, sequence, initial_carry, seq_lengths, rngs)

    def explain(self, inputs: Array, **kwargs) -> Explanation:
        """What a call does, see `parscan_bp.explain`; arguments are those of a call.

        Arrays may be `jax.ShapeDtypeStruct`. Nothing is run, and the layer stays as it is.
        """
        flags = {name: kwargs.pop(name) for name, v in list(kwargs.items()) if isinstance(v, bool)}
        graphdef, state = nnx.split((self, kwargs.pop("rngs", None)))

        def call(state, inputs, kwargs):
            layer, rngs = nnx.merge(graphdef, state)
            return layer(inputs, rngs=rngs, **flags, **kwargs)

        return explain_calls(call, state, inputs, kwargs)[-1]


def _solve(run: Callable, *args: PyTree, report: bool, **how: Any):
    """`solve_within` of a function with split inputs, whose result stands beside these."""
    made = solve_within(run, *args, report=report, **how)
    if not report:
        return made
    (inputs, result), told = made
    return inputs, (result, told)


def _check_can_change(*nodes: Any) -> None:
    """Raises what Flax does if variables are closed over by a transformation of JAX.

    Before anything is split: a module that cannot be put together again would be lost.
    """
    nnx.update(nodes, nnx.state(nodes))


@merge_inputs
def _forward(layer, inputs, initial_carry, seq_lengths, rngs):
    """Flax's own layer as a function of arrays; one function, so that traces are kept."""
    return layer(inputs, initial_carry=initial_carry, seq_lengths=seq_lengths, rngs=rngs)


@merge_inputs
def _params(layer, *args):
    """The parameters of the cell's linear maps by name, one that is shared at every place."""
    maps = {name: m for name, m in vars(layer.cell).items() if isinstance(m, nnx.Linear)}
    leaves = {name: {"kernel": m.kernel, "bias": m.bias} for name, m in maps.items()}
    return {
        name: {leaf: v[...] for leaf, v in own.items() if v is not None}
        for name, own in leaves.items()
    }


def _forward_with_params(*args):
    return _forward(*args), _params(*args)[1]


class _MaskedCell(nnx.RNNCellBase):
    """A cell that is given `Masked` inputs."""

    def __init__(self, cell):
        self.cell = cell

    @property
    def num_feature_axes(self):
        return self.cell.num_feature_axes

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return self.cell.initialize_carry(input_shape, rngs)

    def __call__(self, carry, inputs):
        return inputs.step(self.cell, carry)


class Bidirectional(nnx.Bidirectional):
    """`flax.nnx.Bidirectional` with masks and resets, over two `RNN` with their own solvers.

    Neither may have ``report=True``, nor therefore ``fallback=False``: outputs alone are merged.

    Args:
      forward_rnn, backward_rnn, merge_fn, time_major, return_carry, rngs: as in
        `flax.nnx.Bidirectional`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from parscan_bp.nnx import RNN, Bidirectional
      >>> cells = [nnx.GRUCell(3, 4, rngs=nnx.Rngs(k)) for k in range(2)]
      >>> Bidirectional(RNN(cells[0]), RNN(cells[1]))(jnp.ones((2, 10, 3))).shape
      (2, 10, 8)
    """

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: tuple[PyTree, PyTree] | None = None,
        rngs: Rngs | None = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        mask: Array | None = None,
        reset: Array | None = None,
    ):
        """Applies both layers, the second in reverse, and merges their outputs.

        Args:
          inputs, initial_carry, rngs, seq_lengths, return_carry, time_major, reverse,
            keep_order: as in `flax.nnx.Bidirectional`.
          mask, reset: as in `RNN`, for both directions.

        Raises:
          TypeError: if a mask or resets are given for layers that do not know them.
          NotImplementedError: if a layer has ``report=True``.
        """
        layers = {"forward_rnn": self.forward_rnn, "backward_rnn": self.backward_rnn}
        sequence = masked_for(RNN, inputs, mask, reset, **layers)
        return super().__call__(
            sequence,
            initial_carry=initial_carry,
            rngs=rngs,
            seq_lengths=seq_lengths,
            return_carry=return_carry,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
        )
