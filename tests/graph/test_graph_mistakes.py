"""Bad graphs: each has its own message, which names the node, what came and what is wanted."""

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp.graph import Node
from parscan_bp.layers import Add, Concatenate, JointFunction, Linear, MaxPool, Multiply

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
        r"node 'a', Concatenate\(\), of .*\(2, 3, 1\)\]; a batch and channels at least",
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
        "inputs: got {}.*; a mapping from names to arrays, one at least",
    ),
    "an unknown output": (
        lambda: run({"a": (jnp.tanh, "x")}, outputs="b"),
        ValueError,
        "outputs: got 'b', which is neither a node nor an input; there are 'x', 'a'",
    ),
    "no outputs": (
        lambda: run({"a": (jnp.tanh, "x")}, outputs=[]),
        TypeError,
        "outputs: got .*; a name or several, one at least, are wanted",
    ),
    "outputs without inputs": (
        lambda: run({"c": jnp.ones(3), "a": (Add(), "x", "c")}, outputs="c"),
        ValueError,
        "outputs: got 'c', of which none depends on an input",
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
        "features: got .*; a mapping from the names",
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


@pytest.mark.parametrize(
    ("features", "how", "words"),
    [
        ({"x": 4}, {}, "features['x']: got"),
        ({"x": (-4,)}, {}, "features['x']: got"),
        ({}, {}, "features: got {}"),
        ({"x": (4,)}, {"dtype": int}, "dtype: got int"),
    ],
)
def test_what_parameters_are_made_for_is_told_by_name(features, how, words):
    with pytest.raises(TypeError) as raised:
        pb.init_graph({"y": (Linear(2), "x")}, jax.random.key(0), features, **how)
    assert words in str(raised.value)


def test_parameters_of_a_function_are_given_to_init():
    nodes = {"h": (JointFunction(lambda p, x: p * x), "x"), "y": (Linear(2), "h")}
    made = pb.init_graph(nodes, jax.random.key(0), {"x": (3,)}, params={"h": jnp.ones(3)})
    assert set(made) == {"h", "y"} and made["y"]["kernel"].shape == (3, 2)
    assert pb.graph(nodes, made, {"x": jnp.ones((1, 3))}, outputs="y").shape == (1, 2)


def test_a_name_of_parameters_may_be_that_of_a_node_without_any():
    nodes = {"t": (jnp.tanh, "x"), "y": pb.Node(Linear(2), "t", params="t")}
    params = pb.init_graph(nodes, jax.random.key(0), {"x": (3,)})
    assert pb.graph(nodes, params, {"x": jnp.ones((1, 3))}, outputs="y").shape == (1, 2)


def test_a_function_is_shown_by_its_name_and_has_no_parameters_to_miss():
    def product(a, b):
        return a @ b

    with pytest.raises(ValueError, match="node 'y', product, of 'x'") as raised:
        pb.graph({"y": (product, "x", "x")}, {}, {"x": jnp.ones((1, 2, 3))})
    assert "init_graph" not in str(raised.value)


def test_a_class_of_joints_is_no_joint():
    with pytest.raises(TypeError, match="Add is a class; a joint is wanted, such as Add"):
        pb.graph({"y": (Add, "x", "x")}, {}, {"x": jnp.ones((1, 2))})
