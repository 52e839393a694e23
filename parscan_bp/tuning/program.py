"""What is raced: the value and gradient of a sum of all that a scan returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.scan.api import as_cell
from parscan_bp.trees import at_least_single, replace_at
from parscan_bp.types import PyTree

GROUPS = ("params", "init", "xs")
"""What can be differentiated."""


def drawn(leaf: Any) -> Any:
    """Numbers for a type; an array as it is."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return 0.1 * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)
    return jnp.zeros(leaf.shape, leaf.dtype)


def opened(step: Callable, init: PyTree, xs: PyTree) -> tuple[PyTree, Callable]:
    """The arrays that a step closes over, and the step as a function of them."""
    cell, params = as_cell(step)
    if cell is not None:
        return params, lambda params: functools.partial(cell, params)
    x = jax.tree.map(lambda a: a[0], xs)
    closed, shape = jax.make_jaxpr(step, return_shape=True)(init, x)
    tree = jax.tree.structure(shape)

    def step_of(consts):
        run = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))
        return lambda c, x: jax.tree.unflatten(tree, run(*jax.tree.leaves((c, x))))

    return list(closed.consts), step_of


def compiled(
    run: Callable, step_of: Callable, wrt: tuple[str, ...], point: Mapping[str, PyTree]
) -> Callable[..., PyTree]:
    """The value and gradient of a sum of all that a scan returns, as a program to be called."""
    leaves = {name: jax.tree.flatten(point[name]) for name in GROUPS}
    moving = {
        name: [k for k, v in enumerate(values) if name in wrt and is_differentiable(jax.typeof(v))]
        for name, (values, _) in leaves.items()
    }

    def loss(floats, rest):
        whole = {}
        for name, (_, tree) in leaves.items():
            values = replace_at(rest[name], moving[name], floats[name])
            whole[name] = jax.tree.unflatten(tree, values)
        outs = run(step_of(whole["params"]), whole["init"], whole["xs"])
        return sum(
            weighed(k, v)
            for k, v in enumerate(jax.tree.leaves(outs))
            if is_differentiable(jax.typeof(v))
        )

    floats = {name: [leaves[name][0][k] for k in at] for name, at in moving.items()}
    rest = {name: values for name, (values, _) in leaves.items()}
    program = jax.jit(jax.value_and_grad(loss)).lower(floats, rest).compile()
    beside = jax.tree.map(lambda v: v * (1 + jnp.finfo(v.dtype).eps), floats)

    def call(moved: bool = False) -> PyTree:
        return program(beside if moved else floats, rest)

    return call


def weighed(k: int, v: Any) -> Any:
    """A sum with weights, so that every entry has a cotangent of its own."""
    weights = jax.random.normal(jax.random.key(k), v.shape)
    return jnp.sum(jnp.real(v).astype(at_least_single(jnp.real(v).dtype)) * weights)
