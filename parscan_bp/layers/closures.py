"""Layers that close over traced values, which become parameters: so they are differentiated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.layers.base import Layer
from parscan_bp.layers.function import Coloured, Function
from parscan_bp.layers.joint_function import JointFunction
from parscan_bp.layers.keys import key_of
from parscan_bp.layers.residual import Residual
from parscan_bp.layers.stack import apply_at
from parscan_bp.operators import MatrixFree
from parscan_bp.types import PyTree


def with_closed_over(
    layers: Sequence[Layer], params: Sequence[PyTree], x: Any
) -> tuple[tuple[Layer, ...], list[PyTree]]:
    """Layers that close over no traced value, with parameters that hold those that they did.

    A value is traced where a transformation of JAX stands around the call that made the layer, as
    in ``grad(lambda w: chain([Elementwise(lambda x: w * x)], [None], x))(w)``.

    Args:
      layers: layers.
      params: parameters of each.
      x: the input of the first, or its shape and dtype.

    Returns:
      Layers and parameters. A layer without such values is itself.

    Raises:
      NotImplementedError: naming a layer whose Jacobian cannot be followed.
    """
    found, own = [], []
    for k, (layer, p) in enumerate(zip(layers, params, strict=True)):
        y = jax.eval_shape(functools.partial(apply_at, k, layer), p, x)
        layer, p = _opened(layer, p, x, y)
        found.append(layer)
        own.append(p)
        x = y
    return tuple(found), own


def opened_joint(
    joint: JointFunction, params: PyTree, xs: Sequence[Any]
) -> tuple[JointFunction, PyTree]:
    """`with_closed_over` of a function of several arrays, with the types of its inputs."""
    ones = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in xs]
    made = _Open.of(joint.function, params, *ones)
    return (JointFunction(made.program), (params, made.values)) if made.values else (joint, params)


def reads_traced(closed: ClosedJaxpr) -> bool:
    """Whether a traced function reads values that are traced outside of it."""
    return any(map(_is_traced, closed.consts))


def _opened(layer: Layer, params: PyTree, x: Any, y: Any) -> tuple[Layer, PyTree]:
    if key_of(layer) is not None:
        return layer, params
    if isinstance(layer, Residual):
        branch, own = with_closed_over(layer.branch, params["branch"], x)
        shortcut, theirs = with_closed_over(layer.shortcut, params["shortcut"], x)
        return Residual(branch, shortcut), {"branch": own, "shortcut": theirs}
    if isinstance(layer, Function | Coloured):
        one = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        made = _Open.of(layer.function, params, one)
        if not made.values:
            return layer, params
        return dataclasses.replace(layer, function=made.program), (params, made.values)
    apply = _Open.of(layer.apply, params, x)
    adjoint = _Open.of(layer.adjoint_operator, params, x, y)
    if not apply.values and not adjoint.values:
        return layer, params
    if any(map(_is_matrix_free, jax.tree.leaves(adjoint.result, is_leaf=_is_matrix_free))):
        raise NotImplementedError(
            f"{layer}: closes over traced values, and its Jacobian is matrix-free, so that they "
            "cannot be found in it; make them parameters of the layer"
        )
    values = (params, apply.values, adjoint.values)
    return _OpenLayer(layer, apply.program, adjoint.program), values


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """A traced function of ``((own, values), *others)`` that gets what it closed over."""

    jaxpr: ClosedJaxpr
    traced: tuple[int, ...]
    tree: Any

    def __call__(self, params: tuple[PyTree, list[Any]], *others: PyTree) -> PyTree:
        own, values = params
        consts = list(self.jaxpr.consts)
        for k, value in zip(self.traced, values, strict=True):
            consts[k] = value
        program = ClosedJaxpr(self.jaxpr.jaxpr, consts)
        return jax.tree.unflatten(self.tree, evaluate(program, jax.tree.leaves((own, *others))))


@dataclasses.dataclass(frozen=True, eq=False)
class _Open:
    """A function as a program, and the traced values that it closes over."""

    program: _Program
    values: list[Any]
    result: PyTree

    @classmethod
    def of(cls, function: Callable[..., Any], *args: Any) -> _Open:
        # A function of its own, whose trace JAX does not remember.
        closed, result = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        traced = tuple(k for k, const in enumerate(closed.consts) if _is_traced(const))
        values = [closed.consts[k] for k in traced]
        return cls(_Program(closed, traced, jax.tree.structure(result)), values, result)


@dataclasses.dataclass(frozen=True, eq=False)
class _OpenLayer(Layer):
    """A layer with parameters (own, values of `apply`, values of the Jacobian)."""

    layer: Layer
    program: _Program
    adjoint: _Program

    def apply(self, params, x):
        return self.program(params[:2], x)

    def adjoint_operator(self, params, x, y):
        own, _, values = params
        return self.adjoint((own, values), x, y)

    def pullback(self, params, x, y, ct):
        return jax.vjp(lambda params: self.apply(params, x), params)[1](ct)[0]


def _is_matrix_free(value: Any) -> bool:
    return isinstance(value, MatrixFree)


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)
