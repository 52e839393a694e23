"""`flax.nnx.Sequential` whose stretches of known layers are a chain. Needs Flax."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from flax import errors, nnx
from flax.nnx import Sequential as FlaxSequential

from parscan_bp.adapters.sequential import Known, apply_layers, known_function, takes
from parscan_bp.arguments import check_bool
from parscan_bp.layers import BatchNorm, LayerNorm
from parscan_bp.layers.traced import traced_layer
from parscan_bp.report import report_on_values
from parscan_bp.solvers import Solver, check_solver

ALL_ARE_SHARED = "rngs" not in inspect.signature(FlaxSequential.__call__).parameters
"""Whether Flax gives keywords to all layers that take them; before, ``rngs`` alone."""


class Sequential(FlaxSequential):
    """`flax.nnx.Sequential` whose stretches of known layers are differentiated by `chain`.

    Known are `nnx.Linear`, `nnx.Conv`, `nnx.LayerNorm`, `nnx.BatchNorm` with running averages,
    deterministic `nnx.Dropout`, and functions of one array: activations, pooling, flattening, by
    name, as partials or lambdas; elementwise ones of one's own if they read nothing that may
    change, such as an attribute. All others, and inputs that are no batch of arrays of floats, go
    through Flax as they are and are differentiated automatically; `explain` tells which.

    Values are those of Flax up to rounding.

    Args:
      *fns: as in `flax.nnx.Sequential`.
      solver: as in `parscan_bp.chain`.
      report: whether a call returns a pair: what it would otherwise, and a `Report`, the worst of
        those of its stretches.
      custom_vjp: whether each stretch is one `jax.custom_vjp`, reverse mode only.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> import parscan_bp.nnx
      >>> linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
      >>> model = parscan_bp.nnx.Sequential(linear, nnx.relu, lambda x: x[:, ::-1])
      >>> model(jnp.ones((4, 2))).shape
      (4, 3)
      >>> model.explain(jnp.ones((4, 2)))[1:]
      ('Elementwise', 'automatic differentiation')
    """

    def __init__(
        self,
        *fns: Callable[..., Any],
        solver: Solver | None = None,
        report: bool = False,
        custom_vjp: bool = False,
    ):
        super().__init__(*fns)
        check_solver(solver, "ragged")
        check_bool("report", report)
        check_bool("custom_vjp", custom_vjp)
        self.solver = solver
        self.report = report
        self.custom_vjp = custom_vjp

    def __call__(self, *args, **kwargs) -> Any:
        """Applies the layers one after the other; arguments as in `flax.nnx.Sequential`."""
        if len(self.layers) == 0:
            output = super().__call__(*args, **kwargs)
            return (output, report_on_values(output)) if self.report else output
        output, _, told = self._run(args, kwargs)
        return (output, told) if self.report else output

    def explain(self, *args, **kwargs) -> tuple[str, ...]:
        """For each layer what it is in the chain, or that it is differentiated automatically.

        Arguments are those of a call, which a copy of the layers runs.
        """
        return nnx.clone(self)._run(args, kwargs)[1]

    def _run(self, args, kwargs):
        shared = {name: v for name, v in kwargs.items() if ALL_ARE_SHARED or name == "rngs"}
        first = {name: v for name, v in kwargs.items() if name != "rngs"}

        def call(k, args, kwargs):
            layer = self.layers[k]
            if not callable(layer):
                raise TypeError(f"Sequence[{k}] is not callable: {layer}")
            if k == 0:
                return FlaxSequential(layer)(*args, **{**shared, **kwargs})
            # What the layer before it returned, for Flax to make its arguments of.
            return FlaxSequential(lambda: kwargs or args, layer)(**shared)

        def known(layer, x):
            return None if takes(layer, shared.keys() - {"rngs"}) else _known_layer(layer, x)

        how: dict[str, Any] = {"solver": self.solver, "report": self.report}
        how["custom_vjp"] = self.custom_vjp
        return apply_layers(list(self.layers), args, first, known=known, call=call, **how)


def _known_layer(layer: Any, x: jax.ShapeDtypeStruct) -> Known:
    """What a layer of `flax.nnx` is, for an input (batch, *features)."""
    kind = type(layer)
    if kind in (nnx.Linear, nnx.Conv) or (kind is nnx.Dropout and layer.deterministic):
        return traced_layer(layer, x)
    if kind in (nnx.LayerNorm, nnx.BatchNorm):
        return _known_norm(layer, x)
    if isinstance(layer, nnx.Module) or not callable(layer):
        return None
    try:
        return known_function(layer, x)
    except errors.TraceContextError:  # it changes a module's state, which a trace must not
        return None


def _known_norm(norm: nnx.LayerNorm | nnx.BatchNorm, x: jax.ShapeDtypeStruct) -> Known:
    """Normalisation of the last axis with scale and bias, for inputs of their dtype."""
    params = {name: v[...] for name in ("scale", "bias") if (v := getattr(norm, name)) is not None}
    if isinstance(norm, nnx.BatchNorm):
        plain = norm.use_running_average and norm.axis in (-1, x.ndim - 1)
        params |= {"mean": norm.mean[...], "var": norm.var[...]}
    else:
        axes = (norm.reduction_axes, norm.feature_axes)
        plain = all(axis in (-1, x.ndim - 1, (-1,)) for axis in axes)
    dtypes = {x.dtype, *(v.dtype for v in params.values())}
    if not plain or not {"scale", "bias"} <= set(params) or len(dtypes) > 1:
        return None
    if norm.dtype not in (None, x.dtype):
        return None
    kind = BatchNorm if isinstance(norm, nnx.BatchNorm) else LayerNorm
    return [(kind(norm.epsilon), params)]
