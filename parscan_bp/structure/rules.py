"""How each primitive treats the axes of its operands, from shapes and parameters alone.

A rule gives, for each result and operand, an `AxisMap`: with which axis of the operand each axis
of the result is elementwise, so that the result at index b along it uses the operand at index b
only. An axis of the operand that no axis of the result names has been mixed. Rules know nothing of
carries and labels; a new primitive is a row of `RULES`, and one without a row mixes everything.
"""

from __future__ import annotations

from collections.abc import Callable

from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import ELEMENTWISE
from parscan_bp.structure import rules_linear as linear
from parscan_bp.structure import rules_shape as shape
from parscan_bp.structure.rules_shape import AxisMaps

RULES: dict[str, Callable[[JaxprEqn], AxisMaps]] = {
    **dict.fromkeys(ELEMENTWISE, shape.elementwise),
    **dict.fromkeys(("optimization_barrier", "device_put"), shape.one_to_one),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), shape.reduce_axes),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), shape.cumulative),
    **dict.fromkeys(("slice", "dynamic_slice"), shape.slice_),
    "transpose": shape.transpose,
    "broadcast_in_dim": shape.broadcast_in_dim,
    "reshape": shape.reshape,
    "squeeze": shape.squeeze,
    "stack": shape.stack,
    "unstack": shape.unstack,
    "tile": shape.tile,
    "concatenate": shape.concatenate,
    "split": shape.split,
    "rev": shape.rev,
    "sort": shape.sort,
    "top_k": shape.top_k,
    "frexp": shape.keep,
    "pad": shape.pad,
    "dynamic_update_slice": shape.dynamic_update_slice,
    "dot_general": linear.dot_general,
    "conv_general_dilated": linear.conv_general_dilated,
    **dict.fromkeys(
        ("reduce_window_sum", "reduce_window_max", "reduce_window_min"), linear.reduce_window
    ),
    "gather": linear.gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"), linear.scatter
    ),
    **dict.fromkeys(("cholesky", "lu", "qr", "eigh", "svd"), linear.leading),
    "triangular_solve": linear.triangular_solve,
    "fft": linear.fft,
}


def axis_maps(eqn: JaxprEqn) -> AxisMaps:
    """The axis maps of an equation: `maps[result][operand]`."""
    return RULES.get(kind_of(eqn), shape.mixed)(eqn)
