"""How the Jacobian of a step is obtained that nobody states: a cell's own, columns, or products."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from parscan_bp.linearise.base import Linearisation
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody, CellJacobian, CellProducts
from parscan_bp.linearise.columns import ByColumns
from parscan_bp.linearise.products import ByProducts
from parscan_bp.structure import CarryStructure, is_holomorphic


def derived(
    body: Body, structure: CarryStructure, cell: CellBody | None, jacobian: str, *, formed: bool
) -> Linearisation:
    """The linearisation of a step.

    Args:
      body: the step.
      structure: of its Jacobian.
      cell: the cell that it is, if it is known to be one.
      jacobian: "auto", "dense" or "diagonal", which are formed.
      formed: whether the Jacobian is to be formed, as a solver needs it that multiplies them.
    """
    if jacobian == "auto" and not formed:
        return ByProducts(body) if cell is None else CellProducts(body, cell)
    avals = [body.carry_avals[k] for k in body.float_carry]
    is_complex = [_is_complex(a.dtype) for a in avals]
    if jacobian == "auto" and cell is not None:
        batch = tuple(tuple(range(len(a.shape) - 1)) for a in avals)
        return CellJacobian(body, body.layout(batch, keep_complex=all(is_complex)), cell)
    keep = all(is_complex) and is_holomorphic(body.jaxpr.jaxpr, body.num_carry)
    diagonal = jacobian == "diagonal" or (jacobian == "auto" and structure.diagonal)
    diagonal = diagonal and (keep or not any(is_complex))
    return ByColumns(body, body.layout(structure.batch_axes, keep_complex=keep), diagonal)


def _is_complex(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)
