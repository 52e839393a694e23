"""The recurrent layers and `Sequential` of `flax.linen`, derivatives by a solver. Needs Flax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from parscan_bp.adapters.flax_cells import LINEN, view_of
from parscan_bp.adapters.linen_block import as_block as as_block
from parscan_bp.adapters.masking import Masked, masked_for, with_mask
from parscan_bp.adapters.sequential import Known, apply_layers, known_function
from parscan_bp.arguments import check_bool
from parscan_bp.explain import Explanation, all_explained
from parscan_bp.forward import Auto, Forward
from parscan_bp.layers.traced import traced_layer
from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.report import report_on_values
from parscan_bp.scan import Fused
from parscan_bp.scan.api import checked_solver
from parscan_bp.scan.plan_record import recorded_plans
from parscan_bp.scan.values.options import checked_forward
from parscan_bp.scan.within import solve_within
from parscan_bp.solvers import Solver, check_has_all_steps, check_solver
from parscan_bp.types import Array, PyTree

try:
    from flax import linen as nn
    from flax.core import lift
    from flax.linen.transforms import lift_direct_transform
except ImportError as error:
    raise ImportError(
        "parscan_bp.linen needs Flax, which is not installed: pip install 'parscan_bp[flax]'"
    ) from error

__all__ = ["RNN", "Bidirectional", "Sequential", "as_block"]


class RNN(nn.RNN):
    """`flax.linen.RNN` whose derivatives come from a solver; the cell is any cell of linen.

    It is Flax's own layer: attributes, parameters and their names, collections, random
    streams, errors and values are those of Flax, bit for bit. Only the equation of its loop
    is replaced.

    Attributes:
      cell, time_major, return_carry, reverse, keep_order, unroll, variable_axes,
        variable_broadcast, variable_carry, split_rngs: as in `flax.linen.RNN`.
      solver: as in `parscan_bp.scan`; of the cells of Flax ``Sweep(recompute=False)`` keeps what
        Flax keeps. A cell that the linear model does not hold runs through `jax.lax.scan` itself
        with ``None``, and raises `NotImplementedError` with a named one.
      forward: as in `parscan_bp.scan`; "fused" takes, on a GPU, the cells of Flax that are ours in
        another arrangement, without a mask. Values are Flax's bit for bit where it is "exact".
      memory_limit: as in `parscan_bp.scan`, bytes.
      report: whether a call returns a pair: what it would otherwise, and the `Report` of
        `parscan_bp.scan`; of a call that makes parameters, whether its result is finite. A layer
        within another, as in `Bidirectional`, is not to.
      custom_vjp: whether a call is one `jax.custom_vjp`, reverse mode only, as by
        `parscan_bp.custom_vjp_scan`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import flax.linen as nn
      >>> import parscan_bp.linen
      >>> rnn = parscan_bp.linen.RNN(nn.GRUCell(4))  # was: nn.RNN
      >>> variables = rnn.init(jax.random.key(0), jnp.ones((2, 10, 3)))
      >>> rnn.apply(variables, jnp.ones((2, 10, 3))).shape
      (2, 10, 4)
      >>> rnn.apply(variables, jnp.ones((2, 10, 3)), method="explain").structure
      'block'
    """

    solver: Solver | None = None
    forward: str | Fused | Forward | Auto = "exact"
    memory_limit: int | MemoryLimit | None = None
    report: bool = False
    custom_vjp: bool = False

    def __post_init__(self):
        checked_solver(self.solver, "auto", self.memory_limit)
        checked_forward(self.forward, self.report)
        check_bool("report", self.report)
        check_bool("custom_vjp", self.custom_vjp)
        super().__post_init__()

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        init_key: Array | None = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        mask: Array | None = None,
        reset: Array | None = None,
    ):
        """Applies the cell along the time axis.

        Args:
          inputs: (*batch, time, *features), or (time, *batch, *features) if ``time_major``.
          initial_carry, init_key, seq_lengths, return_carry, time_major, reverse, keep_order:
            as in `flax.linen.RNN`. Steps beyond ``seq_lengths`` are run, as there.
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
        """
        turned = self.reverse if reverse is None else reverse
        check_has_all_steps(self.solver, reverse=turned, seq_lengths=seq_lengths is not None)
        sequence = with_mask(inputs, mask, reset)
        if isinstance(sequence, Masked):
            sequence = sequence.directed(
                self.cell.num_feature_axes,
                time_major=self.time_major if time_major is None else time_major,
                reverse=turned,
                seq_lengths=seq_lengths,
            )

        view = view_of(self.cell, LINEN, nn)

        def forward(self, inputs, initial_carry, init_key, seq_lengths):
            # As they enter the scan: before the call, which may make new ones.
            params = None if view is None else self.cell.variables.get("params")
            with nn.intercept_methods(_unmask):
                result = super().__call__(
                    inputs,
                    initial_carry=initial_carry,
                    init_key=init_key,
                    seq_lengths=seq_lengths,
                    return_carry=return_carry,
                    time_major=time_major,
                    reverse=reverse,
                    keep_order=keep_order,
                )
            return result if view is None else (result, params)

        args = (sequence, initial_carry, init_key, seq_lengths)
        if self.is_initializing():
            result = forward(self, *args)
            result = result if view is None else result[0]
            return (result, report_on_values(result)) if self.report else result
        options = {
            name: getattr(self, name) for name in ("solver", "forward", "memory_limit", "report")
        }
        options["view"] = view
        options["custom_vjp"] = self.custom_vjp
        return lift_direct_transform(_lifted, (forward,), self, options, *args)

    def explain(self, *args, **kwargs) -> Explanation:
        """What a call does, see `parscan_bp.explain`; arguments are those of a call.

        As of other methods, ``rnn.apply(variables, inputs, method="explain")``; what is run is the
        call.
        """
        with recorded_plans() as plans:
            self(*args, **kwargs)
        return all_explained(self, plans)[-1]


def _lifted(fn: Callable, scopes: Any, options: dict[str, Any], *args: PyTree):
    """`solve_within` of a function of scopes: variables and random streams are its arguments."""

    def inner(scope_fn, repack_fn, variables, rngs, *args):
        def pure(variables, rngs, *args):
            scopes = scope_fn(variables, rngs)
            result = fn(scopes, *args)
            if options["view"] is None:
                return result, repack_fn(scopes)
            result, params = result
            return (result, repack_fn(scopes)), params

        # Flax makes a new function of every call, so that there is nothing to come back to.
        made = solve_within(pure, variables, rngs, *args, **options, anew=True)
        if not options["report"]:
            return made
        (result, variables), told = made
        return (result, told), variables

    return lift.pack(inner, (True,), (True,), (True,))(scopes, *args)


def _unmask(next_fun: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext):
    """Interceptor: a cell that is given a step of `Masked` inputs does the masked step."""
    if len(args) == 2 and isinstance(args[1], Masked):
        return args[1].step(next_fun, args[0])
    return next_fun(*args, **kwargs)


class Bidirectional(nn.Bidirectional):
    """`flax.linen.Bidirectional` with masks and resets, over two `RNN` with their own solvers.

    Neither may have ``report=True``, nor therefore ``fallback=False``: outputs alone are merged.

    Attributes:
      forward_rnn, backward_rnn, merge_fn, time_major, return_carry: as in
        `flax.linen.Bidirectional`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import flax.linen as nn
      >>> from parscan_bp.linen import RNN, Bidirectional
      >>> layer = Bidirectional(RNN(nn.GRUCell(4)), RNN(nn.GRUCell(4)))
      >>> layer.init_with_output(jax.random.key(0), jnp.ones((2, 10, 3)))[0].shape
      (2, 10, 8)
    """

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        init_key: Array | None = None,
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
          inputs, initial_carry, init_key, seq_lengths, return_carry, time_major, reverse,
            keep_order: as in `flax.linen.Bidirectional`.
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
            init_key=init_key,
            seq_lengths=seq_lengths,
            return_carry=return_carry,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
        )


class Sequential(nn.Sequential):
    """`flax.linen.Sequential` whose stretches of known layers are differentiated by `chain`.

    Known are `linen.Dense`, `linen.Conv`, deterministic `linen.Dropout`, and functions of JAX and
    Flax of one array, by name or as `functools.partial`: activations, `max_pool`, `avg_pool`. A
    function of one's own may make modules when it is called, so it is left to Flax, like all
    other layers, and differentiated automatically; `explain` tells which are.

    Values are those of Flax up to rounding; parameters have Flax's names.

    Attributes:
      layers: as in `flax.linen.Sequential`.
      solver: as in `parscan_bp.chain`.
      report: whether a call returns a pair: what it would otherwise, and a `Report`, the worst of
        those of its stretches.
      custom_vjp: whether each stretch is one `jax.custom_vjp`, reverse mode only.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import flax.linen as nn
      >>> import parscan_bp.linen
      >>> model = parscan_bp.linen.Sequential([nn.Dense(3), nn.relu, nn.Dense(1)])
      >>> x = jnp.ones((4, 2))
      >>> variables = model.init(jax.random.key(0), x)
      >>> model.apply(variables, x, method="explain")[0]
      'Linear'
    """

    solver: Solver | None = None
    report: bool = False
    custom_vjp: bool = False

    def __post_init__(self):
        check_solver(self.solver, "ragged")
        check_bool("report", self.report)
        check_bool("custom_vjp", self.custom_vjp)
        super().__post_init__()

    def __call__(self, *args, **kwargs):
        """Applies the layers one after the other; arguments as in `flax.linen.Sequential`."""
        output, _, told = self._run(args, kwargs)
        return (output, told) if self.report else output

    def explain(self, *args, **kwargs) -> tuple[str, ...]:
        """For each layer what it is in the chain, or that it is differentiated automatically."""
        return self._run(args, kwargs)[1]

    @nn.compact
    def _run(self, args, kwargs):
        if self.is_initializing() or not self.layers:
            output = super().__call__(*args, **kwargs)
            return output, (), report_on_values(output) if self.report else None
        return apply_layers(
            self.layers,
            args,
            kwargs,
            known=_known_layer,
            call=lambda k, args, kwargs: self.layers[k](*args, **kwargs),
            solver=self.solver,
            report=self.report,
            custom_vjp=self.custom_vjp,
        )


def _known_layer(layer: Any, x: jax.ShapeDtypeStruct) -> Known:
    """What a layer of `flax.linen` is, for an input (batch, *features)."""
    kind = type(layer)
    if kind in (nn.Dense, nn.Conv) or (kind is nn.Dropout and layer.deterministic):
        return traced_layer(layer, x)
    function = layer.func if isinstance(layer, functools.partial) else layer
    library = getattr(function, "__module__", None) or ""
    if isinstance(layer, nn.Module) or library.partition(".")[0] not in ("jax", "flax"):
        return None
    return known_function(layer, x)
