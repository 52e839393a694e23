"""How the Jacobian of a step is obtained: what is given, a cell's own, its columns, or products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.base import Linearisation
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody, CellJacobian, CellProducts
from parscan_bp.linearise.columns import ByColumns
from parscan_bp.linearise.given import Given, batch_axes_given
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.linearise.products import ByProducts
from parscan_bp.structure import CarryStructure, is_holomorphic
from parscan_bp.system import broadcasts


def linearisation_of(
    body: Body,
    structure: CarryStructure,
    cell: CellBody | None,
    trees: tuple[Any, Any, Any] | None,
    jacobian: str | Callable,
    *,
    formed: bool,
) -> tuple[Linearisation, Sequence[Any]]:
    """The linearisation of a step, and the values that it closes over.

    Args:
      body: the step.
      structure: of its Jacobian.
      cell: the cell that it is, if it is known to be one.
      trees, jacobian: see `make_plan`.
      formed: whether the Jacobian is to be formed, as a solver needs it that multiplies them;
        one that is given is.

    Raises:
      ValueError: if a given Jacobian does not fit the carry.
    """
    if callable(jacobian):
        return _given(body, trees, jacobian)
    if jacobian == "auto" and not formed:
        return (ByProducts(body) if cell is None else CellProducts(body, cell)), ()
    shapes, dtypes = _shapes(body), _dtypes(body)
    if jacobian == "auto" and cell is not None:
        batch = tuple(tuple(range(len(s) - 1)) for s in shapes)
        layout = CarryLayout(shapes, dtypes, batch, all(map(_is_complex, dtypes)))
        return CellJacobian(body, layout, cell), ()
    keep = all(map(_is_complex, dtypes)) and is_holomorphic(body.jaxpr.jaxpr, body.num_carry)
    diagonal = jacobian == "diagonal" or (jacobian == "auto" and structure.diagonal)
    diagonal = diagonal and (keep or not any(map(_is_complex, dtypes)))
    return ByColumns(body, CarryLayout(shapes, dtypes, structure.batch_axes, keep), diagonal), ()


def layout_of(body: Body, structure: CarryStructure) -> CarryLayout:
    """The layout of the carry under its structure, complex numbers in two parts."""
    return CarryLayout(_shapes(body), _dtypes(body), structure.batch_axes)


def _given(body, trees, jacobian):
    """A caller's function as a linearisation, its closed-over values made explicit."""
    _, carry_tree, x_tree = trees
    if carry_tree.num_leaves != body.num_carry:
        raise ValueError(
            "jacobian: the step never changes some leaf of the carry, so it has no Jacobian; "
            "close over that leaf instead of carrying it"
        )

    def struct(avals):
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]

    carry = jax.tree.unflatten(carry_tree, struct(body.carry_avals))
    x = jax.tree.unflatten(x_tree, struct(body.x_avals))
    closed, shape = jax.make_jaxpr(jacobian, return_shape=True)(carry, x, carry)
    batch, shapes = batch_axes_given(shape), _shapes(body)
    rank = len(batch)
    layout = CarryLayout(shapes, _dtypes(body), tuple(tuple(range(rank)) for _ in shapes))
    size = sum(layout.features) if all(len(s) >= rank for s in shapes) else None
    if size is None or tuple(shape.shape) != (size, size):
        raise ValueError(
            f"jacobian: the operator is {shape.shape[0]}x{shape.shape[1]} with batch axes "
            f"{batch}; for carry leaves of shapes {shapes} the transposed Jacobian "
            f"with those batch axes is {size}x{size}"
        )
    own = {s[:rank] for s in shapes}
    if len(own) > 1 or any(not broadcasts(batch, to=b) for b in own):
        raise ValueError(
            f"jacobian: the operator has batch axes {batch}; carry leaves of shapes {shapes} want "
            "the axes that lead in all of them, or 1 for one that is shared along it"
        )
    tree = jax.tree.structure(shape)

    def call(extra, carry, x, new_carry):
        program = ClosedJaxpr(closed.jaxpr, list(extra))
        return jax.tree.unflatten(tree, evaluate(program, [*carry, *x, *new_carry]))

    return Given(body, layout, call), tuple(closed.consts)


def _shapes(body: Body) -> tuple[tuple[int, ...], ...]:
    return tuple(body.carry_avals[k].shape for k in body.float_carry)


def _dtypes(body: Body) -> tuple[Any, ...]:
    return tuple(body.carry_avals[k].dtype for k in body.float_carry)


def _is_complex(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)
