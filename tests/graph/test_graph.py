"""What a graph promises beside its derivatives: names, order, sharing, closures, types, reports."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.graph import Node
from parscan_bp.graph.api import graph_as_chain
from parscan_bp.layers import (
    Add,
    Concatenate,
    Elementwise,
    Function,
    Joint,
    JointFunction,
    Linear,
    Multiply,
    init,
)
from parscan_bp.operators import BlockSparse, Diagonal
from tests.compiling import counted
from tests.family import jit_once

X64 = jnp.result_type(float) == jnp.float64
RTOL = 1e-11 if X64 else 2e-4
X = {"x": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "z": jnp.linspace(0.5, 1.0, 4).reshape(2, 2)}
# A skip over three nodes, a joint of each kind, two nodes of one layer, two inputs and outputs.
NODES = {
    "out": (Add(), "b", "x"),
    "b": Node(Linear(3), "a", params="w"),
    "a": (jnp.tanh, "h"),
    "h": Node(Linear(3), "x", params="w"),
    "side": (Concatenate(), "h", "z"),
    "p": (Multiply(), "a", "h", "c"),
    "c": jnp.array([1.0, 2.0, 3.0]),
    "both": (lambda p, s: jnp.cumsum(p) * jnp.sum(s), "p", "side"),
}
OUTPUTS = ("out", "both", "side")


def plain(params, inputs):
    linear = lambda x: x @ params["w"]["kernel"] + params["w"]["bias"]  # noqa: E731
    h = linear(inputs["x"])
    a = jnp.tanh(h)
    side = jnp.concatenate([h, inputs["z"]], -1)
    p = a * h * jnp.array([1.0, 2.0, 3.0])
    both = jnp.cumsum(p, 1) * side.sum(1, keepdims=True)
    return {"out": linear(a) + inputs["x"], "both": both, "side": side}


def ours(params, inputs, **how):
    return pb.graph(NODES, params, inputs, outputs=OUTPUTS, **how)


@functools.cache
def drawn():
    return {"w": init([Linear(3)], jax.random.key(0), (3,))[0]}


def loss_of(run):
    def loss(*at):
        ys = run(*at)
        return sum(jnp.sum(jnp.sin(ys[n]) * (k + 1)) for k, n in enumerate(sorted(ys)))

    return loss


def assert_close(got, want, rtol=RTOL):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = max(float(np.abs(b).max(initial=0)), 1e-6)
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(b) / scale, rtol=0, atol=rtol)


def test_outputs_by_name():
    params = drawn()

    def some(params, inputs):
        run = functools.partial(pb.graph, NODES, params, inputs)
        last = run()  # those that no other node reads
        assert list(last) == ["out", "both"]
        # Of a node that no output depends on, nothing is run.
        wrong = {**NODES, "wrong": (Add(), "x", "z")}
        one = pb.graph(wrong, params, inputs, outputs="h")
        assert one.shape == (2, 3)
        return ours(params, inputs), plain(params, inputs), run(outputs=["c", "x"])

    got, want, others = jit_once(some)(params, X)
    assert_close(got, want)
    np.testing.assert_array_equal(others["c"], [[1, 2, 3]] * 2)
    np.testing.assert_array_equal(others["x"], X["x"])


MODES = {
    "vmap of grad": lambda f: (
        lambda params, x: jax.vmap(jax.grad(f), (None, 0))(
            params, jax.tree.map(lambda a: jnp.stack([a, 2 * a]), x)
        )
    ),
    "grad of grad": lambda f: jax.grad(
        lambda *at: sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(f, (0, 1))(*at))), (0, 1)
    ),
    "jvp of jvp": lambda f: lambda *at: jax.jvp(lambda *at: jax.jvp(f, at, at)[1], at, at),
}


@pytest.mark.parametrize("solver", [None, pb.Blelloch()], ids=["none", "blelloch"])
def test_every_mode_and_order(solver):
    runs = [loss_of(functools.partial(ours, solver=solver)), loss_of(plain)]

    def all_modes(*at):
        return [[make(f)(*at) for make in MODES.values()] for f in runs]

    got, want = jit_once(all_modes)(drawn(), X)
    assert_close(got, want, 10 * RTOL)


def test_a_graph_that_is_a_chain_has_the_operators_of_the_chain():
    layers = [Linear(3), jnp.tanh, Linear(2)]
    params = init(layers, jax.random.key(0), (3,))
    nodes = {"c": (layers[2], "b"), "a": (layers[0], "x"), "b": (layers[1], "a")}
    named = {"a": params[0], "c": params[2]}
    found = pb.explain_graph(nodes, named, {"x": X["x"]})
    assert not any(isinstance(op, BlockSparse) for op in found.operators)
    plan = pb.explain_chain(layers, params, X["x"])
    assert found.plan.outlook == plan.outlook and found.plan.schedule == plan.schedule


def test_the_order_keeps_live_sets_small():
    """Two branches of wide values: one after the other, whatever the order they are given in."""
    wide = lambda x: jnp.concatenate([x] * 20)  # noqa: E731
    narrow = lambda x: x.sum(keepdims=True)  # noqa: E731
    nodes = {f"wide{k}": (wide, "x") for k in range(4)}
    nodes |= {f"narrow{k}": (narrow, f"wide{k}") for k in range(4)}
    nodes["y"] = (Add(), *(f"narrow{k}" for k in range(4)))
    live, _, _ = graph_as_chain(nodes, {}, {"x": X["x"]}, "y")
    assert max(sum(name.startswith("wide") for name in names) for names in live.sets) == 1
    again, _, _ = graph_as_chain(dict(reversed(nodes.items())), {}, {"x": X["x"]}, "y")
    both = ([chain.nbytes(k) for k in range(len(chain.sets))] for chain in (live, again))
    assert next(both) == next(both)


def test_constants_stand_just_before_they_are_read():
    live, _, _ = graph_as_chain(NODES, drawn(), X, OUTPUTS)
    names = [node.name for node in live.order]
    assert names.index("c") + 1 == names.index("p")


def test_explanation():
    found = pb.explain_graph(NODES, jax.eval_shape(lambda: drawn()), X, outputs=OUTPUTS)
    text = str(found)
    assert found.steps == 8 and found.live.longest_path == 4
    assert found.levels == pb.Blelloch().complexity(8).steps
    assert "8 nodes, 4 on the longest path; Blelloch() takes 6 levels" in text
    assert "kept, ChannelSlice, ChannelSlice" in text
    assert all(f"{k:<6}{v.name:<16}" in text for k, v in enumerate(found.live.order))
    assert f"push     {7} {found.live.order[7].name}" in text
    assert found.largest == max(map(found.live.nbytes, range(9)))
    assert found.stored > found.live.bytes_of_values


def test_report():
    _, report = jax.jit(functools.partial(ours, report=True))(drawn(), X)
    assert report.status == pb.Status.OK and report.residual < 1e-5


def test_a_second_call_compiles_nothing():
    loss = loss_of(lambda params: ours(params, X))
    gradient = jax.grad(loss)
    gradient(drawn())
    before = counted()
    assert before
    gradient(drawn())
    assert counted() == before


@pytest.mark.parametrize(
    "of",
    [
        lambda w: {"y": (lambda x: jnp.cumsum(w * x), "x")},
        lambda w: {"y": (Elementwise(lambda x: jnp.sin(w * x)), "x")},
        lambda w: {"y": (Function(lambda _, x: jnp.cumsum(w * x)), "x")},
        lambda w: {"y": (JointFunction(lambda _, x, v: w * x * jnp.sum(v)), "x", "x")},
        lambda w: {"h": w * jnp.ones(3), "y": (Multiply(), "x", "h", "x")},
    ],
    ids=["function", "elementwise", "Function", "JointFunction", "constant"],
)
def test_what_nodes_close_over_is_differentiated(of):
    """Values traced outside; a skip beside them, so that there is a grid of operators."""
    x = {"x": X["x"]}

    def loss(run, w):
        return jnp.sum(jnp.cos(run(w)))

    def graph(w):
        return pb.graph({**of(w), "z": (Add(), "x", "y")}, {}, x, outputs="z")

    def by_hand(w):
        ((layer, *reads),) = [node for node in of(w).values() if isinstance(node, tuple)]
        values = {"x": x["x"], "h": w * jnp.ones((2, 3))}
        xs = [values[name] for name in reads]
        if isinstance(layer, Multiply):
            y = xs[0] * xs[1] * xs[2]
        elif isinstance(layer, Elementwise):
            y = layer.function(xs[0])
        elif isinstance(layer, Function | JointFunction):
            y = jax.vmap(lambda *xs: layer.function(None, *xs))(*xs)
        else:
            y = jax.vmap(layer)(*xs)
        return x["x"] + y

    got, want = jit_once(
        lambda w: [jax.grad(functools.partial(loss, run))(w) for run in (graph, by_hand)]
    )(0.7)
    assert_close(got, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes_and_empty_batches(dtype):
    cast = lambda tree: jax.tree.map(lambda a: a.astype(dtype), tree)  # noqa: E731
    nodes = {**NODES, "c": NODES["c"].astype(dtype)}
    run = lambda *at: pb.graph(nodes, *at, outputs=OUTPUTS)  # noqa: E731

    def both(params, inputs, none):
        got, want = (jax.grad(loss_of(f), (0, 1))(params, inputs) for f in (run, plain))
        return got, want, jax.grad(loss_of(run), (0, 1))(params, none)

    none = {name: x[:0] for name, x in X.items()}
    got, want, empty = jit_once(both)(*cast((drawn(), X, none)))
    assert_close(got, want, 20 * float(jnp.finfo(dtype).eps))
    assert all(not a.any() for a in jax.tree.leaves(empty))
    assert empty[1]["x"].shape == (0, 3)


def test_values_of_several_dtypes_are_each_exact():
    """The state is in their common dtype, from which each comes back as it was."""
    half = jnp.array([[0.1, 2000.0, 3e-7]], jnp.float16)
    nodes = {
        "single": (lambda x: x.astype(jnp.float32) * 3, "x"),
        "y": (lambda x, s: x * s.astype(jnp.float16), "x", "single"),
    }
    run = functools.partial(pb.graph, nodes, {})
    got = run({"x": half}, outputs=["x", "y", "single"])
    assert [got[n].dtype for n in ("x", "y", "single")] == [jnp.float16, jnp.float16, jnp.float32]
    np.testing.assert_array_equal(got["x"], half)

    def loss(x):  # `single` is live beside `y`, whose Jacobian by it is matrix-free
        found = run({"x": x}, outputs=["y", "single"])
        return found["y"].astype(float).sum() + found["single"].astype(float).sum()

    slope = jax.grad(loss)(half[:, :1])
    assert slope.dtype == jnp.float16
    np.testing.assert_allclose(slope, 6 * half[:, :1] + 3, rtol=2e-3)


def test_arrays_of_numpy():
    nodes = {"c": np.ones(3), "y": (Add(), "x", "c")}
    got = pb.graph(nodes, {}, {"x": np.ones((2, 3))}, outputs="y")
    assert got.dtype == jnp.result_type(float) and (np.asarray(got) == 2).all()


@dataclasses.dataclass(frozen=True)
class Gate(Joint):
    """y = scale a b, a joint of one's own."""

    wrong: str = ""

    def init(self, key, features, dtype=float):
        return {"scale": jnp.ones(features[0], dtype)}

    def apply(self, params, a, b):
        return params["scale"] * a * b

    def adjoint_operators(self, params, xs, y):
        a, b = xs
        found = [Diagonal(params["scale"] * b), Diagonal(params["scale"] * a)]
        if self.wrong == "size":
            return [Diagonal(jnp.ones(1)), found[1]]
        return found[:1] if self.wrong == "count" else found

    def pullback(self, params, xs, y, ct):
        return {"scale": (ct * xs[0] * xs[1]).sum(0)}


def test_a_joint_of_ones_own():
    nodes = {"a": (jnp.tanh, "x"), "y": (Gate(), "a", "x")}
    params = pb.init_graph(nodes, jax.random.key(0), {"x": (3,)})
    x = {"x": X["x"]}

    def both(params, x):
        run = lambda params, x: jnp.sin(pb.graph(nodes, params, x, outputs="y")).sum()  # noqa: E731
        plain = lambda params, x: jnp.sin(  # noqa: E731
            params["y"]["scale"] * jnp.tanh(x["x"]) * x["x"]
        ).sum()
        return [jax.grad(f, (0, 1))(params, x) for f in (run, plain)]

    assert_close(*jit_once(both)(params, x))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("size", r"input 0 of node 'y', Gate.*returned Diagonal of 1x1; 3x3"),
        ("count", "returned 1 operators; one for each of 2 inputs"),
    ],
)
def test_a_joint_that_states_something_else(wrong, told):
    nodes = {"y": (Gate(wrong), "x", "x")}
    params = pb.init_graph(nodes, jax.random.key(0), {"x": (3,)})
    with pytest.raises(ValueError, match=told):
        jax.grad(lambda x: pb.graph(nodes, params, {"x": x}, outputs="y").sum())(X["x"])


def test_a_function_with_a_vjp_of_its_own():
    @jax.custom_vjp
    def clipped(a, b):
        return jnp.cumsum(a * b)

    clipped.defvjp(lambda a, b: (clipped(a, b), (a, b)), lambda at, ct: (2 * ct, 3 * ct))
    nodes = {"a": (jnp.tanh, "x"), "y": (clipped, "a", "x")}
    got = jax.grad(lambda x: pb.graph(nodes, {}, {"x": x}, outputs="y").sum())(X["x"])
    np.testing.assert_allclose(got, 2 * (1 - jnp.tanh(X["x"]) ** 2) + 3, rtol=1e-6)


def test_an_elementwise_function_with_rules_of_its_own():
    """A surrogate slope of a `jax.custom_jvp`, and a VJP that has no JVP beside it."""

    @jax.custom_jvp
    def sign(a):
        return jnp.sign(a)

    sign.defjvp(lambda at, t: (sign(*at), 3 * t[0]))

    @jax.custom_vjp
    def doubled(a):
        return 2 * a

    doubled.defvjp(lambda a: (doubled(a), None), lambda _, ct: (7 * ct,))
    nodes = {"s": (sign, "x"), "d": (doubled, "x"), "y": (Add(), "s", "d", "x")}
    got = jax.grad(lambda x: pb.graph(nodes, {}, {"x": x}, outputs="y").sum())(X["x"])
    assert (np.asarray(got) == 11).all()


def test_a_batch_of_symbolic_size():
    """Left to plain automatic differentiation, as a chain is."""
    (n,) = jax.export.symbolic_shape("n")
    shapes = {name: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype) for name, x in X.items()}
    gradient = jax.jit(jax.grad(loss_of(ours)))
    exported = jax.export.export(gradient)(drawn(), shapes)
    assert_close(exported.call(drawn(), X), gradient(drawn(), X))


def _over_devices():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("stage",))
    params = {"w": init([Linear(3)], jax.random.key(0), (3,))[0]}
    solvers = [pb.Sharded("stage", mesh, method=method) for method in ("turns", "chain")]
    runs = [loss_of(functools.partial(ours, solver=solver)) for solver in [None, *solvers]]
    want, *rest = [jax.jit(jax.grad(f, (0, 1)))(params, X) for f in runs]
    for got in rest:
        assert_close(got, want, 1e-5)
    print(pb.explain_graph(NODES, params, X, outputs=OUTPUTS, solver=solvers[0]))


def test_nodes_over_devices(run_on_devices):
    run_on_devices(_over_devices, 2)
