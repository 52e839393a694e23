"""A graph as a chain of its live sets: its steps, and what is live between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.graph.node import NamedNode, OfOne
from parscan_bp.graph.order import in_small_live_sets, live_sets, longest_path, needed_for
from parscan_bp.graph.step import LiveType, StateStep, joined_state, live_values
from parscan_bp.layers import JointFunction
from parscan_bp.layers.closures import opened_joint, with_closed_over
from parscan_bp.layers.keys import key_of
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class LiveSets:
    """A graph as a chain: s_0 are the inputs, s_k what is live after k nodes, s_n the outputs.

    Attributes:
      order: the nodes, as they are worked on.
      sets: the names of the live values before the first node and after each, n + 1 of them.
      types: the type of each value, without the batch.
      batch: entries of the batch.
    """

    order: tuple[NamedNode, ...]
    sets: tuple[tuple[str, ...], ...]
    types: Mapping[str, LiveType]
    batch: int

    @property
    def steps(self) -> list[StateStep]:
        """The layers of the chain."""
        found = []
        for node, before, after in zip(self.order, self.sets[:-1], self.sets[1:], strict=True):
            reads = tuple(before.index(name) for name in node.reads)
            keeps = tuple(before.index(name) for name in after[:-1])
            entering = tuple(self.types[name] for name in before)
            found.append(
                StateStep(node.name, node.joint, reads, keeps, entering, self.types[node.name])
            )
        return found

    def entering(self, inputs: Mapping[str, Array]) -> Array:
        """s_0, (batch, total)."""
        return joined_state([inputs[name] for name in self.sets[0]], self._parts(0))

    def leaving(self, state: Array) -> dict[str, Array]:
        """The values of the outputs, by name."""
        return dict(zip(self.sets[-1], live_values(state, self._parts(-1)), strict=True))

    def nbytes(self, k: int) -> int:
        """Bytes of s_k, for the whole batch."""
        dtype = jnp.result_type(*(part.dtype for part in self._parts(k)))
        return self.batch * dtype.itemsize * sum(part.size for part in self._parts(k))

    @property
    def bytes_of_values(self) -> int:
        """Bytes of all values, each once."""
        names = {name for live in self.sets for name in live}
        return self.batch * sum(_nbytes(self.types[name]) for name in names)

    @property
    def longest_path(self) -> int:
        """Nodes on the longest path from an input to an output."""
        return longest_path(self.order)

    def _parts(self, k: int) -> tuple[LiveType, ...]:
        return tuple(self.types[name] for name in self.sets[k])


def live_sets_of(
    named: Mapping[str, NamedNode],
    params: Mapping[str, PyTree],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
) -> tuple[LiveSets, list[PyTree]]:
    """The chain of a graph, and the parameters of its steps.

    Args:
      named: the nodes.
      params: their parameters by name.
      inputs: arrays (batch, *features), or their shapes and dtypes.
      outputs: names of the values that are wanted.

    Raises:
      ValueError: naming the node that does not take its inputs.
    """
    needed = needed_for(named, outputs)
    types = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in inputs.items()}
    batch = next(iter(types.values())).shape[0]
    own: dict[str, PyTree] = {}
    for name, node in needed.items():
        xs = [types[read] for read in node.reads]
        types[name] = value_type(node, node.own(params), xs, batch)
        needed[name], own[name] = _opened(node, node.own(params), xs)
    parts = {name: LiveType(tuple(t.shape[1:]), np.dtype(t.dtype)) for name, t in types.items()}
    nbytes = {name: _nbytes(part) for name, part in parts.items()}
    order = in_small_live_sets(needed, list(inputs), outputs, nbytes)
    sets = live_sets(order, list(inputs), outputs)
    found = LiveSets(tuple(order), tuple(sets), parts, batch)
    return found, [own[node.name] for node in order]


def value_type(
    node: NamedNode, params: PyTree, xs: Sequence[jax.ShapeDtypeStruct], batch: int
) -> jax.ShapeDtypeStruct:
    """The type of a node's value.

    Raises:
      ValueError: naming the node, if it does not take its inputs and parameters; if its value is
        not one array of real floats, or has another batch.
    """
    told = ", ".join(f"{name!r} {tuple(x.shape)}" for name, x in zip(node.reads, xs, strict=True))
    try:
        y = jax.eval_shape(node.joint.apply, params, *xs)
    except (TypeError, ValueError, KeyError) as error:
        missing = f". params has no {node.params!r}, as init_graph makes it"
        hint = missing if params is None and node.has_params else ""
        raise ValueError(f"{node}, of {told}: {error}{hint}") from error
    if not node.reads:
        y = jax.ShapeDtypeStruct((batch, *y.shape), y.dtype)
    if not isinstance(y, jax.ShapeDtypeStruct) or not jnp.issubdtype(y.dtype, jnp.floating):
        raise ValueError(f"{node}, of {told}: makes {y}; one array of real floats is wanted")
    if y.shape[:1] != (batch,):
        raise ValueError(
            f"{node}, of {told}: makes shape {tuple(y.shape)}; the batch of {batch} is wanted as "
            "the leading axis, its entries are independent"
        )
    return y


def _opened(node: NamedNode, params: PyTree, xs: Sequence[Any]) -> tuple[NamedNode, PyTree]:
    """A node that closes over no traced value, see `layers.closures.with_closed_over`."""
    joint = node.joint
    if key_of(joint) is not None:
        return node, params
    if isinstance(joint, OfOne):
        (layer,), (params,) = with_closed_over([joint.layer], [params], xs[0])
        joint = OfOne(layer)
    elif isinstance(joint, JointFunction):
        joint, params = opened_joint(joint, params, xs)
    return dataclasses.replace(node, joint=joint), params


def _nbytes(part: LiveType) -> int:
    """Bytes of one entry of the batch."""
    return part.size * part.dtype.itemsize
