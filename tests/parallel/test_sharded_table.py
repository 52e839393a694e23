"""`Sharded` and steps with rules of a user's, calls and control flow; see `sharded_table`."""

import pytest

START = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax import lax, nn
from jax.sharding import PartitionSpec as P
from tests.parallel.sharded_table import *

mesh = line_mesh(DEVICES)
SOLVER = pb.Sharded("time", mesh)

def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, (a, b)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
"""

SOME = (
    START
    + """
names = "softplus", "surrogate", "cond of nothing", "inner scan"
check(names, "turns", None, jnp.float32, kinds=("gradient",))
"""
)

# Each group with every method and every inner solver, if not with all pairs of them.
GROUP = (
    START
    + """
pairs = [(k, (k + GROUP) % len(METHODS)) for k in range(len(INNER))]
check_all([(GROUP, method, inner) for inner, method in pairs], jnp.DTYPE)
"""
)

OTHERS = (
    START
    + """
kinds = "product", "vmap"
names = "softplus", "surrogate", "nested rules", "cond", "inner scan", "checkpoint", "logaddexp"
for method, inner in (("ppermute", None), ("turns", INNER[2]), ("corrections", None)):
    check(names, method, inner, jnp.float64, kinds=kinds)
check(KEYS, "all_gather", INNER[3], jnp.float64, kinds=kinds)
"""
)

LAYERS = (
    START
    + """
own = pb.layers.Elementwise(lambda v: spike(v) + jnp.logaddexp(v, 0.3))
sorts = pb.layers.Function(lambda _, v: jnp.sort(nn.selu(v)))
layers = [pb.layers.Linear(4), nn.relu, nn.softplus, own, sorts] * 3
params = pb.layers.init(layers, jax.random.key(0), (4,))
x = jnp.linspace(-1, 1, 8).reshape(2, 4)

def value(params, x, solver):
    return (pb.chain(layers, params, x, solver=solver) ** 2).sum()

want, got = (
    jax.jit(jax.grad(functools.partial(value, solver=solver), (0, 1)))(params, x)
    for solver in (None, SOLVER)
)
close(got, want)
"""
)

FORWARD = (
    START
    + """
def step(w, h, x):
    h = nn.relu(0.4 * jnp.tanh(h @ w) + x) + 0.1 * nn.softplus(h)
    return h, nn.relu(h - 0.2)

w = jnp.eye(3) + 0.1
xs = jnp.sin(jnp.arange(96.0)).reshape(16, 2, 3)
want = jax.jit(modes(lax.scan, step)["gradient"])(w, xs[0], xs)
how = {"solver": SOLVER, "forward": pb.Chunks(rounds=3), "tolerance": 1e-11}
got = jax.jit(modes(functools.partial(pb.scan, **how), step)["gradient"])(w, xs[0], xs)
close(got, want)
"""
)

INSIDE = (
    START
    + """
names = "softplus", "surrogate", "cond of nothing", "cond", "fori_loop", "rule with a zero"
step, p, h, xs = case(names, jnp.float64)
starts = jnp.stack([h * k for k in range(1, 5)])

# Parameters are the same on all devices, or each has its own, as the inputs.
def split(scan, whole):
    spec = P() if whole else P("time")

    def each(p, h, xs):
        if whole:
            h = lax.pcast(h, "time", to="varying")  # as lax.scan wants it
        else:
            p, h = jax.tree.map(lambda a: a[0], (p, h))
        last, ys = scan(functools.partial(step, p), h, xs[0])
        return jax.tree.map(lambda a: a[None], (last, ys))

    call = jax.shard_map(each, mesh=mesh, in_specs=(spec, spec, P("time")), out_specs=P("time"))
    loss = lambda *args: sum((a**2).sum() for a in jax.tree.leaves(call(*args)))
    return jax.jit(jax.grad(loss, (0, 1, 2)))

each = xs * jnp.arange(1.0, 5)[:, None, None, None]
own = jax.tree.map(lambda a: jnp.stack([a] * 4), p), starts
for whole in (True, False):
    args = (*((p, h) if whole else own), each)
    want = split(lax.scan, whole)(*args)
    for solver in (None, pb.Sweep(), pb.Chunked(2), pb.Blelloch(), pb.Associative()):
        close(split(functools.partial(pb.scan, solver=solver), whole)(*args), want)
"""
)

FLAX = (
    START
    + """
import parscan_bp.nnx
from flax import nnx

xs = jnp.cos(jnp.arange(48.0)).reshape(8, 2, 3)

def slopes(library, activation, **how):
    types = {"dtype": xs.dtype, "param_dtype": xs.dtype}
    cell = nnx.SimpleCell(3, 4, activation_fn=activation, rngs=nnx.Rngs(0), **types)
    layer = library.RNN(cell, time_major=True, **how)
    loss = lambda layer, xs: (layer(xs) ** 2).sum()
    return nnx.jit(nnx.grad(loss, argnums=(0, 1)))(layer, xs)

for activation in (nn.relu, nn.softplus, spike):
    close(slopes(pb.nnx, activation, solver=SOLVER), slopes(nnx, activation))
"""
)

GIVEN = (
    START
    + """
# A rule that only reverse-mode has; the Jacobian that is given calls functions with rules.
@jax.custom_vjp
def bent(v):
    return nn.relu(v) + 0.1 * v

bent.defvjp(lambda v: (bent(v), v), lambda v, ct: (ct * nn.sigmoid(v) * nn.relu(1 + v),))

def step(w, h, x):
    h = bent(w * h + x)
    return h, h

def given(w):
    slope = lambda v: nn.sigmoid(v) * nn.relu(1 + v)
    return lambda h, x, new: pb.operators.Diagonal(w * slope(w * h + x))

w, h = jnp.array([0.5, -0.7, 0.0]), jnp.array([0.3, -1.0, 0.0])
xs = jnp.sin(jnp.arange(24.0)).reshape(8, 3) * jnp.array([1.0, 1, 0])

def slopes(scan):
    def loss(w, h, xs):
        last, ys = scan(w)(functools.partial(step, w), h, xs)
        return (last**3).sum() + (ys**2).sum()
    return jax.jit(jax.grad(loss, (0, 1, 2)))(w, h, xs)

want = slopes(lambda w: lax.scan)
for method in ("turns", "chain"):
    solver = pb.Sharded("time", mesh, method=method)
    ours = lambda w: functools.partial(pb.scan, solver=solver, jacobian=given(lax.stop_gradient(w)))
    close(slopes(ours), want)
"""
)

LOST = (
    START
    + """
# A primitive whose results JAX takes to be of one type wherever it is.
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

odd = Primitive("odd")
odd.def_abstract_eval(lambda v: jax.core.ShapedArray(v.shape, v.dtype))
mlir.register_lowering(odd, mlir.lower_fun(lambda v: -v, False))
ad.deflinear(odd, lambda ct: [-ct])
step = lambda h, x: (odd.bind(nn.relu(h) + x), None)
try:
    pb.scan(step, jnp.ones(3), jnp.ones((8, 3)), solver=SOLVER)
except NotImplementedError as error:
    assert "the step contains odd" in str(error), error
else:
    raise AssertionError("a wrong type")
"""
)


def test_rules_calls_and_control_flow_of_a_step(run_on_devices):
    run_on_devices(SOME, 4)


def test_a_type_that_would_be_lost_raises(run_on_devices):
    run_on_devices(LOST, 4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("group", range(9))
def test_every_function_by_every_method_and_inner_solver(run_on_devices, group, dtype):
    program = GROUP.replace("GROUP", str(group)).replace("DTYPE", dtype)
    run_on_devices(program, 4, x64=dtype == "float64")


@pytest.mark.slow
def test_second_derivatives_and_batches(run_on_devices):
    run_on_devices(OTHERS, 4, x64=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [LAYERS, FORWARD, INSIDE, FLAX, GIVEN],
    ids=["layers", "forward", "inside", "flax", "given"],
)
def test_such_steps_elsewhere(run_on_devices, program):
    run_on_devices(program, 4, x64=True)
