"""Axis maps of contractions, windows, gathers, scatters and decompositions. See `rules.py`."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import shape_of
from parscan_bp.structure.rules_shape import AxisMap, AxisMaps, mixed


def dot_general(eqn: JaxprEqn) -> AxisMaps:
    """Result axes are [batch, free of the left, free of the right]."""
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    left, right = (range(len(shape_of(atom))) for atom in eqn.invars[:2])
    left_free = [a for a in left if a not in (*left_sum, *left_batch)]
    right_free = [a for a in right if a not in (*right_sum, *right_batch)]
    of_left = (*left_batch, *left_free, *[None] * len(right_free))
    of_right = (*right_batch, *[None] * len(left_free), *right_free)
    return [[of_left, of_right]]


def conv_general_dilated(eqn: JaxprEqn) -> AxisMaps:
    """The batch axis; the channels of a depthwise convolution; the places of a pointwise one."""
    p = eqn.params
    image, kernel = (shape_of(atom) for atom in eqn.invars)
    (out,) = map(shape_of, eqn.outvars)
    if p["batch_group_count"] != 1:
        return mixed(eqn)
    dims = p["dimension_numbers"]
    of_image: list[int | None] = [None] * len(out)
    of_kernel: list[int | None] = [None] * len(out)
    of_image[dims.out_spec[0]] = dims.lhs_spec[0]
    of_kernel[dims.out_spec[1]] = dims.rhs_spec[0]
    channels = image[dims.lhs_spec[1]]
    if p["feature_group_count"] == channels == out[dims.out_spec[1]]:
        of_image[dims.out_spec[1]] = dims.lhs_spec[1]
    for k, (a, b, c) in enumerate(
        zip(dims.out_spec[2:], dims.lhs_spec[2:], dims.rhs_spec[2:], strict=True)
    ):
        pointwise = kernel[c] == 1 and p["window_strides"][k] == 1 and p["lhs_dilation"][k] == 1
        if pointwise and tuple(p["padding"][k]) == (0, 0):
            of_image[a] = b
    return [[tuple(of_image), tuple(of_kernel)]]


def reduce_window(eqn: JaxprEqn) -> AxisMaps:
    p = eqn.params
    windows = zip(
        p["window_dimensions"], p["window_strides"], p["base_dilation"], p["padding"], strict=True
    )
    axes = tuple(
        k if (size, stride, dilation, *padding) == (1, 1, 1, 0, 0) else None
        for k, (size, stride, dilation, padding) in enumerate(windows)
    )
    return [[axes] * len(eqn.invars)]


def gather(eqn: JaxprEqn) -> AxisMaps:
    """Axes taken whole (the start of a full slice can only be 0) and the batching ones."""
    dims, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand = shape_of(eqn.invars[0])
    rank = len(shape_of(eqn.outvars[0]))
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    window = [a for a in range(len(operand)) if a not in gone]
    axes: list[int | None] = [None] * rank
    for k, a in zip(dims.offset_dims, window, strict=True):
        if sizes[a] == operand[a]:
            axes[k] = a
    # Result axes outside the window are those of the indices, less their last one.
    places = [k for k in range(rank) if k not in dims.offset_dims]
    batching = zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
    for a, index_axis in batching:
        axes[places[index_axis]] = a
    return [[tuple(axes), None]]


def scatter(eqn: JaxprEqn) -> AxisMaps:
    """The operand stays in place; of the updates, whole windows and the batching axes do."""
    dims = eqn.params["dimension_numbers"]
    operand, updates = shape_of(eqn.invars[0]), shape_of(eqn.invars[2])
    gone = (*dims.inserted_window_dims, *dims.operand_batching_dims)
    window = [a for a in range(len(operand)) if a not in gone]
    axes: list[int | None] = [None] * len(operand)
    for u, a in zip(dims.update_window_dims, window, strict=True):
        if updates[u] == operand[a]:
            axes[a] = u
    places = [u for u in range(len(updates)) if u not in dims.update_window_dims]
    batching = zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True)
    for a, index_axis in batching:
        axes[a] = places[index_axis]
    return [[tuple(range(len(operand))), None, tuple(axes)]]


def leading(eqn: JaxprEqn) -> AxisMaps:
    """A matrix operation on the last two axes of each operand, batched over those in front."""
    return _leading(eqn, 2)


def triangular_solve(eqn: JaxprEqn) -> AxisMaps:
    """As `leading`; and the right-hand sides do not see each other."""
    ((of_matrix, _),) = _leading(eqn, 2)
    rank = len(of_matrix or ())
    free = rank - 1 if eqn.params["left_side"] else rank - 2
    batch = range(rank - 2)
    return [[of_matrix, tuple(k if k in batch or k == free else None for k in range(rank))]]


def fft(eqn: JaxprEqn) -> AxisMaps:
    return _leading(eqn, len(eqn.params["fft_lengths"]))


def _leading(eqn: JaxprEqn, core: int) -> AxisMaps:
    batch = len(shape_of(eqn.invars[0])) - core

    def axes(rank: int) -> AxisMap:
        return (*range(batch), *[None] * (rank - batch))

    return [[axes(len(shape_of(v)))] * len(eqn.invars) for v in eqn.outvars]
