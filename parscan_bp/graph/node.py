"""What a graph is made of: names, each with what makes its value and what that reads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import as_array, described
from parscan_bp.layers import Joint, JointFunction, Layer, as_layer
from parscan_bp.types import Array, PyTree


@final
@dataclasses.dataclass(frozen=True, init=False)
class Node:
    """A node of a graph: what makes its value, of which values, with whose parameters.

    Args:
      layer: a layer, or what stands for one in `parscan_bp.chain`; a `parscan_bp.layers.Joint` such
        as ``Add()`` or ``Concatenate()``; or any function of one entry of each input, without the
        batch axis and without parameters (`JointFunction` takes one with parameters).
      *inputs: names of the nodes or inputs of the graph that it reads.
      params: under which name its parameters stand; its own if it is not said. Nodes that name the
        same one share them.

    Raises:
      TypeError: if a name is none.
      ValueError: if there is no input.

    Example:
      >>> from parscan_bp.graph import Node
      >>> from parscan_bp.layers import Linear
      >>> Node(Linear(8), "x", params="shared").inputs
      ('x',)
    """

    layer: Any
    inputs: tuple[str, ...]
    params: str | None

    def __init__(self, layer: Any, *inputs: str, params: str | None = None):
        for name in inputs:
            if not isinstance(name, str):
                raise TypeError(
                    f"inputs: got {described(name)}; names are wanted, such as Node(Add(), 'a', "
                    "'b')"
                )
        if not (params is None or isinstance(params, str)):
            raise TypeError(f"params: got {described(params)}; None or a name is wanted")
        if not inputs:
            raise ValueError(
                f"inputs: got none for {described(layer)}; at least one name is wanted. A value "
                "that depends on no input stands in the graph itself, as an array"
            )
        for name, value in (("layer", layer), ("inputs", inputs), ("params", params)):
            object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True)
class NamedNode:
    """A node by its name.

    Attributes:
      name: its own.
      joint: what makes its value.
      reads: names of what it reads; none of a constant.
      params: the name of its parameters.
      constant: the value of a constant, which stands in the place of parameters.
    """

    name: str
    joint: Joint
    reads: tuple[str, ...]
    params: str
    constant: Any = None

    def __str__(self):
        function = _of_inputs(self.joint)
        shown = self.joint if function is None else getattr(function, "__name__", function)
        return f"node {self.name!r}, {shown}"

    @property
    def has_params(self) -> bool:
        """Whether it may have parameters."""
        if _of_inputs(self.joint) is not None:
            return False
        if isinstance(self.joint, OfOne):
            return type(self.joint.layer).pullback is not Layer.pullback
        return type(self.joint).pullback is not Joint.pullback

    def own(self, params: Mapping[str, PyTree]) -> PyTree:
        """Its parameters among those of the graph."""
        if self.constant is not None:
            return self.constant
        return params.get(self.params) if self.has_params else None


@final
@dataclasses.dataclass(frozen=True)
class OfOne(Joint):
    """A layer as a joint of one input."""

    layer: Layer

    def __repr__(self):
        return repr(self.layer)

    def init(self, key, features, dtype=float):
        return self.layer.init(key, features[0], dtype)

    def apply(self, params, *xs):
        return self.layer.apply(params, *xs)

    def adjoint_operators(self, params, xs, y):
        return [self.layer.adjoint_operator(params, xs[0], y)]

    def pullback(self, params, xs, y, ct):
        return self.layer.pullback(params, xs[0], y, ct)


@final
@dataclasses.dataclass(frozen=True)
class Constant(Joint):
    """A value that reads nothing: its parameter, the same for each entry of the batch."""

    def apply(self, params, *xs):
        return params

    def adjoint_operators(self, params, xs, y):
        return []

    def pullback(self, params, xs, y, ct):
        return ct.sum(0).astype(params.dtype)


def as_named_nodes(nodes: Any, inputs: Mapping[str, Any]) -> dict[str, NamedNode]:
    """The nodes of a graph by their names, in the given order.

    Args:
      nodes: names to a `Node`, a tuple of its arguments, or an array: a constant.
      inputs: names to the graph's inputs.

    Raises:
      TypeError: if it is no such mapping, or there is no builder for a layer.
      ValueError: naming a node that is an input, too, one that reads what is neither, or one with
        more inputs than its layer takes.
    """
    if not isinstance(nodes, Mapping):
        raise TypeError(f"nodes: got {described(nodes)}; a mapping from names to nodes is wanted")
    for name in nodes:
        if not isinstance(name, str):
            raise TypeError(f"nodes: got {described(name)} as a name; a str is wanted")
        if name in inputs:
            raise ValueError(
                f"nodes: {name!r} is an input of the graph, too; a name for each of both is wanted"
            )
    named = {name: _named_node(name, node) for name, node in nodes.items()}
    known = [*inputs, *named]
    for node in named.values():
        for read in node.reads:
            if read not in known:
                raise ValueError(
                    f"node {node.name!r}: reads {read!r}, which is neither an input nor a node; "
                    f"there are {', '.join(map(repr, known))}"
                )
    return named


def _named_node(name: str, node: Any) -> NamedNode:
    if isinstance(node, jax.Array | np.ndarray | np.generic):
        return _constant(name, node)
    if isinstance(node, tuple):
        node = Node(*node)
    if not isinstance(node, Node):
        raise TypeError(
            f"node {name!r}: got {described(node)}; a Node is wanted, a tuple of its arguments as "
            "(Linear(8), 'x'), or an array as a constant"
        )
    joint = _as_joint(node.layer, f"node {name!r}")
    if isinstance(joint, OfOne) and len(node.inputs) != 1:
        raise ValueError(
            f"node {name!r}: {joint} takes one input; got {len(node.inputs)}, "
            f"{', '.join(map(repr, node.inputs))}. Add() or Concatenate() joins several"
        )
    return NamedNode(name, joint, node.inputs, name if node.params is None else node.params)


def _constant(name: str, value: Any) -> NamedNode:
    value = as_array(f"node {name!r}", value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"node {name!r}: got a constant of {value.dtype}; real floats are wanted. What is no "
            "float a function may close over"
        )
    return NamedNode(name, Constant(), (), name, value)


def _as_joint(thing: Any, where: str) -> Joint:
    if isinstance(thing, Joint):
        return thing
    if isinstance(thing, type) and issubclass(thing, Joint):
        raise TypeError(
            f"{where}: {thing.__name__} is a class; a joint is wanted, such as {thing.__name__}()"
        )
    try:
        return OfOne(as_layer(thing, where))
    except TypeError:
        if not callable(thing) or isinstance(thing, type):
            raise
    return JointFunction(functools.partial(_without_params, thing))


def _of_inputs(joint: Joint) -> Callable[..., Array] | None:
    """The function of a node that is one of its inputs alone."""
    if not isinstance(joint, JointFunction):
        return None
    function = joint.function
    if isinstance(function, functools.partial) and function.func is _without_params:
        return function.args[0]
    return None


def _without_params(function: Callable[..., Array], params: None, *xs: Array) -> Array:
    return function(*xs)
