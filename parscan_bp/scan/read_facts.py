"""What the choice of a solver is made from, read off a traced scan."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp import kernels
from parscan_bp.choice.facts import Facts
from parscan_bp.choice.rules import ON_CHIP
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.cell import CellBody
from parscan_bp.scan.jacobians import layout_of
from parscan_bp.structure import CarryStructure
from parscan_bp.trees import nbytes


def facts_of(
    params: dict[str, Any],
    body: Body,
    structure: CarryStructure,
    linear: Linearisation,
    cell: CellBody | None,
    *,
    may_form: bool,
) -> Facts:
    """The facts of a scan.

    Args:
      params: of its equation.
      body, structure, linear, cell: its step.
      may_form: whether kernels that form the cell's Jacobians are a choice.
    """
    layout = layout_of(body, structure)
    return Facts(
        platform=jax.default_backend(),
        length=params["length"],
        batch=math.prod(layout.batch_shape),
        features=sum(layout.features),
        leaves=len(body.float_carry),
        itemsize=layout.dtype.itemsize,
        structure=structure.kind,
        linearisation=linear.kind,
        equations=len(body.jaxpr.jaxpr.eqns),
        touched=body.nbytes + nbytes(list(body.jaxpr.in_avals)),
        jax_version=jax.__version_info__[:2],
        on_chip=may_form and cell is not None and _on_chip(body, cell, params["length"]),
    )


def _on_chip(body: Body, cell: CellBody, length: int) -> bool:
    """See `Facts`; several GPUs may share the arrays, of which a kernel knows nothing."""
    # What is looked at first needs no import of kernels.
    if jax.default_backend() != "gpu" or jax.device_count() > 1:
        return False
    if kernels.unusable(interpret=False) is not None:
        return False

    def jacobians(consts, carry, x):
        return cell.jacobian(Steps(consts, carry, x, carry, cell.params(consts)))

    stacked = [
        [jax.ShapeDtypeStruct((length, *a.shape), a.dtype) for a in avals]
        for avals in (body.carry_avals, body.x_avals)
    ]
    operator = jax.eval_shape(jacobians, list(body.const_avals), *stacked)
    # With bfloat16 no kernel was run on a GPU yet.
    return operator.dtype == jnp.float32 and ON_CHIP.takes(operator)
