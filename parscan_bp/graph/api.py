"""`graph`: an arbitrary computation graph with derivatives by a solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_array, as_dtype, check_array, check_key, described
from parscan_bp.chain import chain
from parscan_bp.graph.live import LiveSets, live_sets_of, value_type
from parscan_bp.graph.node import NamedNode, as_named_nodes
from parscan_bp.graph.order import check_no_cycle, needed_for
from parscan_bp.solvers import Solver
from parscan_bp.types import Array, PyTree


def graph(
    nodes: Mapping[str, Any],
    params: Mapping[str, PyTree],
    inputs: Mapping[str, Array],
    *,
    outputs: str | Sequence[str] | None = None,
    solver: Solver | None = None,
    report: bool = False,
) -> Any:
    """The values of a computation graph, its derivatives by a bi-diagonal system.

    A graph is a chain of its live sets. Its nodes are put into an order v_1, ..., v_n in which each
    comes after what it reads; s_k are the values that are read after v_k, or are outputs, side by
    side. Then s_k = step_k(s_{k-1}), and

        lambda_{k-1} = A_k lambda_k,    A_k = (d s_k / d s_{k-1})^T    (BPPSA eq. 3)

    where A_k is block-sparse: the identity for each value that passes through, and from the values
    that v_k reads to its own the transposed Jacobians of its layer. The order is one of small live
    sets. `chain` does the rest, whose solvers, plans, reports and derivatives of every order and
    mode are those of a graph.

    Args:
      nodes: names, in any order, each with a `Node`: a layer, a joint such as ``Add()``, or a
        function, and the names that it reads. A tuple stands for the arguments of a `Node`. An
        array is a constant, (*features), the same for each entry of the batch.
      params: parameters by the name of the node, as `init_graph` makes them; none, or ``None``, for
        a node without. Nodes may share some (`Node`); their cotangents add up.
      inputs: arrays of real floats (batch, *features) by name, of one batch, whose entries are
        independent; channels come last.
      outputs: a name, or a sequence of names of nodes or inputs. ``None`` is all nodes that no
        other one reads. Nodes that no output depends on are left out.
      solver: as in `chain`.
      report: as in `chain`: whether a `Report` on the chain's derivatives is returned as well.

    Returns:
      The value of the output that was named, (batch, *features); else a dict of the outputs' values
      by name. With ``report=True`` a pair of that and the report.

    Raises:
      TypeError: if an argument is none such, or a layer has no builder.
      ValueError: if a name stands for two things or for none, an input is read by no node,
        parameters are missing or left over, or sizes do not fit, naming the node; if nodes read
        each other in a cycle.
      NotImplementedError: as `chain`.

    Source: M. Naumov, "Parallel complexity of forward and backward propagation", 2017, sections 3
    to 5: propagation as a triangular system, here of arbitrary sparsity.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.layers import Add, Linear
      >>> nodes = {
      ...     "h": (Linear(3), "x"),
      ...     "a": (jax.nn.relu, "h"),
      ...     "y": (Add(), "x", "a"),
      ... }
      >>> inputs = {"x": jnp.ones((2, 3))}
      >>> params = pb.init_graph(nodes, jax.random.key(0), {"x": (3,)})
      >>> loss = lambda params: pb.graph(nodes, params, inputs, outputs="y").sum()
      >>> sorted(jax.grad(loss)(params)["h"])
      ['bias', 'kernel']
    """
    inputs = checked_inputs(inputs)
    live, own, names = graph_as_chain(nodes, params, inputs, outputs)
    found = chain(live.steps, own, live.entering(inputs), solver=solver, report=report)
    state, told = found if report else (found, None)
    values = live.leaving(state)
    result = values[outputs] if isinstance(outputs, str) else {n: values[n] for n in names}
    return (result, told) if report else result


def graph_as_chain(
    nodes: Any, params: Any, inputs: Any, outputs: Any
) -> tuple[LiveSets, list[PyTree], list[str]]:
    """The chain of a graph, the parameters of its steps, and the names of its outputs.

    Args:
      nodes, params, outputs: as in `graph`.
      inputs: as `checked_inputs` returns them; these and parameters may be shapes and dtypes.
    """
    named = as_named_nodes(nodes, inputs)
    check_no_cycle(named)
    names = _outputs(outputs, named, inputs)
    read = {r for node in named.values() for r in node.reads} | set(names)
    for name in inputs:
        if name not in read:
            raise ValueError(f"inputs: {name!r} is read by no node; leave it out")
    needed = needed_for(named, names)
    reached = {r for node in needed.values() for r in node.reads} | set(names)
    if not reached & set(inputs):
        raise ValueError(
            f"outputs: got {', '.join(map(repr, names))}, of which none depends on an input; one "
            "that does is wanted"
        )
    params = _checked_params(params, named, needed)
    return *live_sets_of(named, params, inputs, names), names


def init_graph(
    nodes: Mapping[str, Any],
    key: Array,
    features: Mapping[str, tuple[int, ...]],
    dtype: Any = float,
    *,
    params: Mapping[str, PyTree] | None = None,
) -> dict[str, PyTree]:
    """Parameters of the nodes of a graph, by name.

    Args:
      nodes: as in `graph`.
      key: random key.
      features: shape of one entry of each input, without the batch axis, by name.
      dtype: of the parameters and of the inputs.
      params: those that are yours to make, by name: what a `JointFunction` or `Function` takes.

    Returns:
      Parameters by the name under which they stand, of nodes that have some, yours among them.
      Those that nodes share are made by the first of them.

    Raises:
      TypeError, ValueError: as `graph`.

    Example:
      >>> import jax, parscan_bp as pb
      >>> from parscan_bp.graph import Node
      >>> from parscan_bp.layers import Linear
      >>> nodes = {"a": Node(Linear(2), "x", params="w"), "b": Node(Linear(2), "a", params="w")}
      >>> jax.tree.map(lambda a: a.shape, pb.init_graph(nodes, jax.random.key(0), {"x": (2,)}))
      {'w': {'bias': (2,), 'kernel': (2, 2)}}
    """
    check_key("key", key)
    dtype = jnp.result_type(as_dtype("dtype", dtype))
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype: got {dtype}; real floats are wanted")
    types = _types_of(features, dtype)
    named = as_named_nodes(nodes, types)
    check_no_cycle(named)
    params = dict(params or {})
    for k, node in enumerate(needed_for(named, list(named)).values()):
        xs = [types[read] for read in node.reads]
        if node.params not in params and node.has_params and node.reads:
            own = node.joint.init(
                jax.random.fold_in(key, k), [tuple(x.shape[1:]) for x in xs], dtype
            )
            params |= {} if own is None else {node.params: own}
        types[node.name] = value_type(node, node.own(params), xs, 1)
    return params


def _types_of(features: Any, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Those of inputs, of a batch of one."""
    if not isinstance(features, Mapping) or not features:
        raise TypeError(
            f"features: got {described(features)}; a mapping from the names of inputs to shapes is "
            "wanted, such as {'x': (8,)}"
        )
    types = {}
    for name, shape in features.items():
        fits = isinstance(shape, Sequence) and not isinstance(shape, str)
        if not fits or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise TypeError(
                f"features[{name!r}]: got {described(shape)}; a shape without the batch axis is "
                "wanted, such as (8,)"
            )
        types[name] = jax.ShapeDtypeStruct((1, *shape), dtype)
    return types


def checked_inputs(inputs: Any) -> dict[str, Any]:
    """The inputs of a graph, as arrays or as shapes and dtypes.

    Raises:
      TypeError, ValueError: unless they are arrays of real floats of one batch, by name.
    """
    if not isinstance(inputs, Mapping) or not inputs:
        raise TypeError(
            f"inputs: got {described(inputs)}; a mapping from names to arrays, one at least, is "
            "wanted"
        )
    wanted, found = "real floats (batch, *features) are wanted", {}
    for name, x in inputs.items():
        if not isinstance(name, str):
            raise TypeError(f"inputs: got {described(name)} as a name; a str is wanted")
        check_array(f"inputs[{name!r}]", x, wanted)
        x = found[name] = as_array(f"inputs[{name!r}]", x)
        if not jnp.issubdtype(x.dtype, jnp.floating) or not x.shape:
            raise TypeError(f"inputs[{name!r}]: got {x.dtype}{list(x.shape)}; {wanted}")
    batches = {name: x.shape[0] for name, x in found.items()}
    if len(set(batches.values())) > 1:
        raise ValueError(f"inputs: got batches of {batches}; one batch is wanted")
    return found


def _outputs(outputs: Any, named: Mapping[str, NamedNode], inputs: Mapping[str, Any]) -> list[str]:
    if outputs is None:
        read = {r for node in named.values() for r in node.reads}
        return [name for name in named if name not in read]
    names = [outputs] if isinstance(outputs, str) else outputs
    if not isinstance(names, Sequence) or not names:
        raise TypeError(
            f"outputs: got {described(outputs)}; a name or several, one at least, are wanted"
        )
    known = {*named, *inputs}
    for name in names:
        if name not in known:
            raise ValueError(
                f"outputs: got {name!r}, which is neither a node nor an input; there are "
                f"{', '.join(map(repr, (*inputs, *named)))}"
            )
    return list(dict.fromkeys(names))


def _checked_params(
    params: Any, named: Mapping[str, NamedNode], needed: Mapping[str, NamedNode]
) -> Mapping[str, PyTree]:
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params: got {described(params)}; a mapping from names to parameters is wanted, as "
            "init_graph makes it"
        )
    users = {node.params: node for node in named.values() if node.reads}
    for name in params:
        if name not in users:
            raise ValueError(
                f"params: got {name!r}, which no node uses; those of "
                f"{', '.join(map(repr, users))} are wanted"
            )
    taking = {node.params for node in named.values() if node.has_params}
    for node in needed.values():
        own = params.get(node.params)
        if node.params not in taking and jax.tree.leaves(own):
            raise ValueError(
                f"params[{node.params!r}]: got {described(own)}; {node} has no pullback, and "
                "so has no parameters: None is wanted"
            )
    return params
