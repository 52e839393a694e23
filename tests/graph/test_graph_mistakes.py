"""Bad graphs: each has its own message, which names the node, what came and what is wanted."""

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp.graph import Node
from parscan_bp.layers import Add, Concatenate, Linear, MaxPool, Multiply

X = jnp.ones((2, 3))
OWN = {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}


def run(nodes, params=None, inputs=None, **how):
    return pb.graph(nodes, params or {}, {"x": X} if inputs is None else inputs, **how)


def start(nodes, features=(3,)):
    return pb.init_graph(nodes, jax.random.key(0), {"x": features})


MISTAKES = {
    "no mapping": (lambda: run([Linear(3)]), TypeError, "nodes: got .*; a mapping from names"),
    "no name": (lambda: run({1: (jnp.tanh, "x")}), TypeError, "nodes: got .*1.* as a name"),
    "no node": (lambda: run({"a": "tanh"}), TypeError, "node 'a': got .*; a Node is wanted"),
    "no layer": (
        lambda: run({"a": ("tanh", "x")}),
        TypeError,
        "node 'a': there is no builder for 'tanh'",
    ),
    "a class": (lambda: run({"a": (Linear, "x")}), TypeError, "node 'a': Linear is a class"),
    "no reads": (lambda: Node(Linear(3)), ValueError, "inputs: got none for .*at least one name"),
    "reads no name": (lambda: Node(Add(), "x", 1), TypeError, "inputs: got .*1.*; names are"),
    "shares with no name": (
        lambda: Node(Linear(3), "x", params=OWN),
        TypeError,
        "params: got .*; None or a name",
    ),
    "a cycle": (
        lambda: run({"a": (jnp.tanh, "c"), "b": (Add(), "x", "a"), "c": (jnp.tanh, "b")}),
        ValueError,
        "nodes: a cycle, 'a' reads 'c' reads 'b' reads 'a'; an order",
    ),
    "reads itself": (
        lambda: start({"a": (Add(), "x", "a")}),
        ValueError,
        "nodes: a cycle, 'a' reads 'a'",
    ),
    "a name twice": (
        lambda: run({"x": (jnp.tanh, "x")}),
        ValueError,
        "nodes: 'x' is an input of the graph, too",
    ),
    "a missing input": (
        lambda: run({"a": (Add(), "x", "y")}),
        ValueError,
        "node 'a': reads 'y', which is neither an input nor a node; there are 'x', 'a'",
    ),
    "an input for nothing": (
        lambda: run({"a": (jnp.tanh, "x")}, inputs={"x": X, "y": X}),
        ValueError,
        "inputs: 'y' is read by no node",
    ),
    "several into one": (
        lambda: run({"a": (Linear(3), "x", "x")}, {"a": OWN}),
        ValueError,
        r"node 'a': Linear\(.*\) takes one input; got 2, 'x', 'x'. Add",
    ),
    "shapes that do not join": (
        lambda: run({"h": (jnp.sum, "x"), "a": (Add(), "x", "h")}),
        ValueError,
        r"node 'a', Add\(\), of 'x' \(2, 3\), 'h' \(2,\): Add: got shapes \[\(2, 3\), \(2,\)\]",
    ),
    "shapes that do not multiply": (
        lambda: run({"h": (lambda x: x[1:], "x"), "a": (Multiply(), "x", "h")}),
        ValueError,
        r"node 'a', Multiply\(\), of .*got shapes \[\(2, 3\), \(2, 2\)\]; one shape",
    ),
    "shapes that do not concatenate": (
        lambda: run({"h": (lambda x: x[:, None], "x"), "a": (Concatenate(), "x", "h")}),
        ValueError,
        r"node 'a', Concatenate\(\), of .*\(2, 3, 1\)\]; the same in all axes but the last",
    ),
    "a layer's input": (
        lambda: run({"a": (MaxPool((2, 2)), "x")}),
        ValueError,
        r"node 'a', MaxPool.*, of 'x' \(2, 3\): .*axes",
    ),
    "another batch": (
        lambda: run({"a": Node(Add(), "x", "y")}, inputs={"x": X, "y": X[:1]}),
        ValueError,
        "inputs: got batches of {'x': 2, 'y': 1}",
    ),
    "no floats": (
        lambda: run({"a": (jnp.tanh, "x")}, inputs={"x": jnp.ones((2, 3), int)}),
        TypeError,
        r"inputs\['x'\]: got int.*; real floats",
    ),
    "makes no floats": (
        lambda: run({"a": (jnp.argmax, "x")}),
        ValueError,
        "node 'a', .*makes .*int.*; one array of real floats",
    ),
    "an integer constant": (
        lambda: run({"c": jnp.arange(3), "a": (Add(), "x", "c")}),
        TypeError,
        "node 'c': got a constant of int.*; real floats",
    ),
    "no inputs": (
        lambda: run({"a": (jnp.tanh, "x")}, inputs={}),
        TypeError,
        "inputs: got {}.*; a mapping from names to arrays",
    ),
    "an unknown output": (
        lambda: run({"a": (jnp.tanh, "x")}, outputs="b"),
        ValueError,
        "outputs: got 'b', which is neither a node nor an input; there are 'x', 'a'",
    ),
    "no outputs": (
        lambda: run({"a": (jnp.tanh, "x")}, outputs=[]),
        TypeError,
        "outputs: got .*; a name or several are wanted",
    ),
    "outputs without inputs": (
        lambda: run({"c": jnp.ones(3), "a": (Add(), "x", "c")}, outputs="c"),
        ValueError,
        "outputs: 'c' depend on no input",
    ),
    "parameters are missing": (
        lambda: run({"a": (Linear(3), "x")}),
        ValueError,
        r"node 'a', Linear\(.*\), of 'x' \(2, 3\): params: got None.*params has no 'a'",
    ),
    "parameters left over": (
        lambda: run({"a": (Linear(3), "x")}, {"a": OWN, "b": OWN}),
        ValueError,
        "params: got 'b', which no node uses; those of 'a' are wanted",
    ),
    "parameters of none": (
        lambda: run({"a": (jnp.tanh, "x")}, {"a": OWN}),
        ValueError,
        r"params\['a'\]: got .*; node 'a', .* has no pullback",
    ),
    "no mapping of parameters": (
        lambda: run({"a": (Linear(3), "x")}, [OWN]),
        TypeError,
        "params: got .*; a mapping from names to parameters",
    ),
    "features": (lambda: start({"a": (Linear(3), "y")}), ValueError, "node 'a': reads 'y'"),
    "no features": (
        lambda: pb.init_graph({"a": (Linear(3), "x")}, jax.random.key(0), (3,)),
        TypeError,
        "features: got .*; a mapping from names",
    ),
    "a solver of equal steps": (
        lambda: run({"a": (jnp.tanh, "x")}, solver=pb.Chunked()),
        NotImplementedError,
        "solver: Chunked takes uniform systems only",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    make, kind, told = MISTAKES[name]
    with pytest.raises(kind, match=told):
        make()
