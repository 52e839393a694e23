"""Rows times a known matrix, in the way in which a CPU does that fastest.

XLA on CPU calls a library for a product of matrices. Inside a loop the call takes longer than a
small product itself, and it splits the loop into kernels. A sum of elementwise products, which is
compiled together with what stands beside it, takes a tenth to two thirds of the time up to the
sizes below, and more beyond them (jax 0.10.2 and 0.12).

The product is an operation of its own, so that its sizes are looked at when all axes are known:
those that an outer `jax.vmap` adds make it large.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Primitive, Var
from jax.interpreters import ad, batching, mlir

from parscan_bp.jaxprs.read import variables
from parscan_bp.jaxprs.replay import bind, evaluate, interpret
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.measured import measured
from parscan_bp.primitives.mapping import at_front, vmapped
from parscan_bp.trees import is_sharded
from parscan_bp.types import Array

SUMMED_IN = ("float32", "float64")
"""Types whose sums may be taken in themselves; of 16 bits, a product sums in 32."""


def as_row_product(eqn: JaxprEqn) -> JaxprEqn | None:
    """The equation ``u @ w`` or ``u @ w.T`` as a product of this module with ``w`` or ``w.T``.

    XLA on CPU packs a matrix for each product with the transpose of it: for 2 to 16 rows that takes
    up to four times as long as the product, so that here the matrix has the summed axis first.

    Returns:
      The product; ``None`` for other equations, and for a single row that is not small, which is
      as fast either way.
    """
    if eqn.primitive is not lax.dot_general_p:
        return None
    types: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    rows, matrix, product = types
    (of_rows, _), batched = eqn.params["dimension_numbers"]
    if matrix.ndim != 2 or len(of_rows) != 1 or batched != ((), ()):
        return None
    if rows.size == rows.shape[of_rows[0]] and not _is_small(product, rows, of_rows[0]):
        return None
    numbers = (of_rows, (0,)), batched
    return eqn.replace(primitive=row_product_p, params={**eqn.params, "dimension_numbers": numbers})


def row_products(step: LinearStep) -> LinearStep:
    """The same map, whose products with known matrices are those of this module.

    A matrix that they read transposed is made so ahead of the loop.
    """
    jaxpr, count = step.apply.jaxpr, len(step.apply.in_avals) - step.width
    known = jaxpr.invars[:count]
    products = {id(eqn): p for eqn in jaxpr.eqns if (p := _of_known(eqn, known)) is not None}
    if not products:
        return step
    turned = [e.invars[1] for e in jaxpr.eqns if id(e) in products and _is_turned(e)]
    turned = list(dict.fromkeys(turned))
    read = {
        v
        for eqn in jaxpr.eqns
        for v in variables(eqn.invars)
        if not (id(eqn) in products and _is_turned(eqn) and v is eqn.invars[1])
    }
    kept = [k for k, v in enumerate(known) if v in read]

    def make(*values):
        k = evaluate(step.known.jaxpr, values)
        return [*(k[place] for place in kept), *(k[known.index(v)].T for v in turned)]

    def run(k, v):
        values = dict(zip(kept, k, strict=False))
        matrices = dict(zip(turned, k[len(kept) :], strict=True))

        def apply(eqn, operands):
            product = products.get(id(eqn))
            if product is None:
                return bind(eqn, operands)
            matrix = matrices[eqn.invars[1]] if _is_turned(eqn) else operands[1]
            return bind(product, [operands[0], matrix])

        places: Any = map(values.get, range(count))
        return interpret(step.apply, [*places, *v], apply)

    closed = jax.make_jaxpr(make)(*step.known.jaxpr.in_avals)
    tree = jax.tree.structure([*kept, *turned])
    return step.rewritten(run, known=dataclasses.replace(step.known, jaxpr=closed, tree=tree))


def _of_known(eqn: JaxprEqn, known: Sequence[Any]) -> JaxprEqn | None:
    """`as_row_product` of what moves with a known matrix."""
    moving = [isinstance(v, Var) and v not in known for v in eqn.invars]
    return as_row_product(eqn) if moving == [True, False] else None


def _is_turned(eqn: JaxprEqn) -> bool:
    """Whether it is ``u @ w.T``."""
    return eqn.params["dimension_numbers"][0][1] == (1,)


def _is_small(product: Any, rows: Any, axis: int) -> bool:
    """Whether the product, which sums over an axis of the rows, is faster without a call.

    Of more terms of a single row's sums XLA makes no call in any case.
    """
    terms, limits = rows.shape[axis], measured("cpu")["row_product"]
    most = limits["terms" if rows.size > terms else "terms_of_one_row"]
    small = terms <= most and math.prod(product.shape) * terms <= limits["products"]
    return small and product.dtype == rows.dtype and rows.dtype in SUMMED_IN


def _types(*types, **how):
    return lax.dot_general_p.abstract_eval(*types, **how)[0]


def _differentiate(primals, tangents, **how):
    (rows, matrix), (t_rows, t_matrix) = primals, tangents
    terms = []
    if not isinstance(t_rows, ad.Zero):
        terms.append(row_product_p.bind(t_rows, matrix, **how))
    if not isinstance(t_matrix, ad.Zero):
        terms.append(row_product_p.bind(rows, t_matrix, **how))
    return row_product_p.bind(rows, matrix, **how), functools.reduce(jnp.add, terms)


def _batch(batch, values, dims, **how):
    if all(d is None for d in dims):
        return row_product_p.bind(*values, **how), None
    rows, matrix = (at_front(v, d) for v, d in zip(values, dims, strict=True))
    if dims[1] is None and how["out_sharding"] is None:  # which names the axes of the product
        ((axis,), of_matrix), batched = how["dimension_numbers"]
        how["dimension_numbers"] = ((axis + 1,), of_matrix), batched
        return row_product_p.bind(rows, matrix, **how), 0
    axes = tuple(None if d is None else 0 for d in dims)
    return vmapped(functools.partial(lax.dot_general_p.bind, **how), axes, batch)(rows, matrix), 0


def _on_cpu(rows: Array, matrix: Array, **how) -> Array:
    ((axis,), _), _ = how["dimension_numbers"]
    product = _types(jax.typeof(rows), jax.typeof(matrix), **how)
    sharded = any(is_sharded(jax.typeof(v)) for v in (rows, matrix))
    if sharded or not _is_small(product, rows, axis):
        return lax.dot_general_p.bind(rows, matrix, **how)
    columns = jnp.expand_dims(jnp.moveaxis(rows, axis, -1), -1)
    # Said in full, as `jax.numpy_rank_promotion` may not allow a matrix to be repeated.
    matrix = jnp.broadcast_to(matrix, (*columns.shape[:-2], *matrix.shape))
    return jnp.sum(columns * matrix, axis=-2)


row_product_p = Primitive("row_product")
row_product_p.def_impl(lax.dot_general_p.bind)
row_product_p.def_abstract_eval(_types)
ad.primitive_jvps[row_product_p] = _differentiate
ad.primitive_transposes[row_product_p] = ad.primitive_transposes[lax.dot_general_p]
batching.fancy_primitive_batchers[row_product_p] = _batch
mlir.register_lowering(row_product_p, mlir.lower_fun(lax.dot_general_p.bind, False))
mlir.register_lowering(row_product_p, mlir.lower_fun(_on_cpu, False), platform="cpu")
