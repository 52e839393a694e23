"""Axis maps of the elementwise, shape-changing and reducing primitives. See `rules.py`."""

from __future__ import annotations

from math import prod

from jax.extend.core import JaxprEqn

from parscan_bp.jaxprs.read import shape_of

AxisMap = tuple[int | None, ...] | None
"""Per axis of the result, the operand's axis with which it is elementwise, or None. In place of
the tuple, None says that the result's derivative with respect to this operand is zero."""

AxisMaps = list[list[AxisMap]]
"""`maps[result][operand]`."""


def mixed(eqn: JaxprEqn) -> AxisMaps:
    """Any entry of any result may depend on any entry of any operand."""
    return [[(None,) * len(shape_of(v))] * len(eqn.invars) for v in eqn.outvars]


def keep(eqn: JaxprEqn, *lost: int) -> AxisMaps:
    """All axes stay where they are and elementwise, but for the `lost` ones."""
    kept = [tuple(None if k in lost else k for k in range(len(shape_of(v)))) for v in eqn.outvars]
    return [[axes] * len(eqn.invars) for axes in kept]


def elementwise(eqn: JaxprEqn) -> AxisMaps:
    """Also with operands that broadcast: scalars, and axes of size one."""
    (out,) = map(shape_of, eqn.outvars)
    maps: list[AxisMap] = []
    for atom in eqn.invars:
        shape = shape_of(atom)
        if len(shape) != len(out):
            maps.append((None,) * len(out))
        else:
            sizes = enumerate(zip(shape, out, strict=True))
            maps.append(tuple(k if size == full else None for k, (size, full) in sizes))
    return [maps]


def one_to_one(eqn: JaxprEqn) -> AxisMaps:
    """Several operands at once, the i-th result from the i-th operand alone."""
    return [
        [tuple(range(len(shape_of(v)))) if i == o else None for i in range(len(eqn.invars))]
        for o, v in enumerate(eqn.outvars)
    ]


def transpose(eqn: JaxprEqn) -> AxisMaps:
    return [[tuple(eqn.params["permutation"])]]


def broadcast_in_dim(eqn: JaxprEqn) -> AxisMaps:
    (out,) = map(shape_of, eqn.outvars)
    shape = shape_of(eqn.invars[0])
    axes: list[int | None] = [None] * len(out)
    for axis, k in enumerate(eqn.params["broadcast_dimensions"]):
        if shape[axis] == out[k]:
            axes[k] = axis
    return [[tuple(axes)] + [None] * (len(eqn.invars) - 1)]


def reshape(eqn: JaxprEqn) -> AxisMaps:
    """An axis survives if its size and the product of the sizes before it do.

    The flat index is (index before) * n * s + (index) * s + (index after) with s the product of
    the sizes after it, which is then the same too.
    """
    (out,) = map(shape_of, eqn.outvars)
    shape = shape_of(eqn.invars[0])
    if eqn.params.get("dimensions") is not None or 0 in shape:
        return mixed(eqn)
    # Several axes of size one share a place: they are paired in order.
    places: dict[tuple[int, int], list[int]] = {}
    for axis, size in enumerate(shape):
        places.setdefault((prod(shape[:axis]), size), []).append(axis)
    axes: list[int | None] = []
    for k, size in enumerate(out):
        same = places.get((prod(out[:k]), size))
        axes.append(same.pop(0) if same else None)
    return [[tuple(axes)] + [None] * (len(eqn.invars) - 1)]


def _without(eqn: JaxprEqn, removed: tuple[int, ...]) -> AxisMap:
    return tuple(a for a in range(len(shape_of(eqn.invars[0]))) if a not in removed)


def squeeze(eqn: JaxprEqn) -> AxisMaps:
    return [[_without(eqn, eqn.params["dimensions"])]]


def reduce_axes(eqn: JaxprEqn) -> AxisMaps:
    return [[_without(eqn, tuple(eqn.params["axes"]))] for _ in eqn.outvars]


def stack(eqn: JaxprEqn) -> AxisMaps:
    axis = eqn.params["axis"]
    rank = len(shape_of(eqn.invars[0]))
    axes = (*range(axis), None, *range(axis, rank))
    return [[axes] * len(eqn.invars)]


def unstack(eqn: JaxprEqn) -> AxisMaps:
    return [[_without(eqn, (eqn.params["axis"],))] for _ in eqn.outvars]


def tile(eqn: JaxprEqn) -> AxisMaps:
    repeated = [k for k, times in enumerate(eqn.params["reps"]) if times != 1]
    return keep(eqn, *repeated)


def concatenate(eqn: JaxprEqn) -> AxisMaps:
    return keep(eqn, eqn.params["dimension"])


def split(eqn: JaxprEqn) -> AxisMaps:
    return keep(eqn, eqn.params["axis"])


def rev(eqn: JaxprEqn) -> AxisMaps:
    return keep(eqn, *eqn.params["dimensions"])


def cumulative(eqn: JaxprEqn) -> AxisMaps:
    return keep(eqn, eqn.params["axis"])


def sort(eqn: JaxprEqn) -> AxisMaps:
    """Each result is a permutation of its own operand; the keys only choose it."""
    lost = eqn.params["dimension"]
    maps = one_to_one(eqn)
    return [
        [m if m is None else tuple(None if k == lost else k for k in m) for m in row]
        for row in maps
    ]


def top_k(eqn: JaxprEqn) -> AxisMaps:
    rank = len(shape_of(eqn.invars[0]))
    return keep(eqn, eqn.params.get("axis", rank - 1) % rank)


def pad(eqn: JaxprEqn) -> AxisMaps:
    config = eqn.params["padding_config"]
    lost = [k for k, widths in enumerate(config) if tuple(widths) != (0, 0, 0)]
    (operand,) = keep(eqn, *lost)
    return [[operand[0], (None,) * len(config)]]


def slice_(eqn: JaxprEqn) -> AxisMaps:
    """An axis that keeps its size is taken whole, also by a dynamic slice: its start is clamped."""
    (out,) = map(shape_of, eqn.outvars)
    shape = shape_of(eqn.invars[0])
    sizes = enumerate(zip(shape, out, strict=True))
    axes = tuple(k if size == full else None for k, (full, size) in sizes)
    return [[axes] + [None] * (len(eqn.invars) - 1)]


def dynamic_update_slice(eqn: JaxprEqn) -> AxisMaps:
    """The operand stays in place; of the update, an axis of full size does."""
    operand, update = (shape_of(atom) for atom in eqn.invars[:2])
    sizes = enumerate(zip(operand, update, strict=True))
    axes = tuple(k if part == full else None for k, (full, part) in sizes)
    return [[tuple(range(len(operand))), axes] + [None] * (len(eqn.invars) - 2)]
