"""`Sharded` where a program is already spread: shard_map, pmap, meshes of two axes, vmap, Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import parscan_bp as pb
from parscan_bp.devices import METHODS, Traffic

SETTING = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from parscan_bp.parallel import Collectives, collective_stats
from tests.family import assert_derivatives_close
from tests.parallel.sharded_cases import case, line_mesh, modes, reference

NAME = "diagonal"
step, p, h, xs = case(NAME, 8, jnp.float32)

def close(got, want, tolerance=3e-5):
    got, want = (jax.tree.map(np.asarray, tree) for tree in (got, want))
    assert_derivatives_close(got, want, tolerance)

def put(tree, mesh, *spec):
    return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, P(*spec))), tree)

def parts(scan, p, h, xs):
    last, ys = scan(functools.partial(step, p), h, xs)
    return (last**2).sum(), (ys**3).sum()

@functools.cache
def wanted():
    return jax.jit(jax.grad(lambda *a: sum(parts(lax.scan, *a)), (0, 1, 2)))(p, h, xs)
"""

MANUAL = (
    SETTING
    + """
mesh = line_mesh(4)
ours = functools.partial(pb.scan, solver=pb.Sharded("time"))
specs = {"mesh": mesh, "in_specs": (P(), P(), P("time"))}

def around(check_vma):
    def loss(*args):
        def both(p, h, xs):
            return ours(functools.partial(step, p), h, xs)
        how = {**specs, "out_specs": (P(), P("time")), "check_vma": check_vma}
        last, ys = jax.shard_map(both, **how)(*args)
        return (last**2).sum() + (ys**3).sum()
    return jax.jit(jax.grad(loss, (0, 1, 2)))(p, h, xs)

# Types say what differs: each gradient is that of the whole.
def typed(p, h, xs):
    def loss(*args):
        last, own = parts(ours, *args)
        return last + lax.psum(own, "time")
    return jax.grad(loss, (0, 1, 2))(p, h, xs)

# They do not: each device has its part of the loss, and gradients are summed.
def untyped(p, h, xs):
    def loss(*args):
        last, own = parts(ours, *args)
        return last / lax.axis_size("time") + own
    of_p, of_h, of_xs = jax.grad(loss, (0, 1, 2))(p, h, xs)
    return *lax.psum((of_p, of_h), "time"), of_xs

# Maps of devices that are too large are refused before anything runs.
try:
    small = functools.partial(pb.scan, solver=pb.Sharded("time", mesh, memory_limit=60))
    jax.eval_shape(jax.grad(lambda h: sum(parts(small, p, h, xs))), h)
except ValueError as error:
    assert "bytes for three maps of" in str(error) and "the limit of 60" in str(error), error
else:
    raise AssertionError("nothing was refused")

def by_pmap():
    run = jax.pmap(untyped, axis_name="time", in_axes=(None, None, 0), devices=jax.devices()[:4])
    of_p, of_h, of_xs = run(p, h, xs.reshape(4, 2, *xs.shape[1:]))
    return *jax.tree.map(lambda a: a[0], (of_p, of_h)), of_xs.reshape(xs.shape)

close(jax.jit(jax.shard_map(typed, **specs, out_specs=(P(), P(), P("time"))))(p, h, xs), wanted())
close(by_pmap(), wanted())
"""
)

MANUAL_MORE = (
    MANUAL
    + """
close(around(True), wanted())
close(around(False), wanted())
how = {"out_specs": (P(), P(), P("time")), "check_vma": False}
close(jax.jit(jax.shard_map(untyped, **specs, **how))(p, h, xs), wanted())
"""
)

TWO_AXES = (
    SETTING
    + """
def mesh_of(kind):
    return jax.make_mesh((2, 2), ("data", "time"), axis_types=(kind,) * 2)

def check(mode, mesh, given=None):
    args = put(p, mesh), put(h, mesh, "data"), put(xs, mesh, "time", "data")
    solver = pb.Sharded("time", given, method="ppermute")
    run = jax.jit(modes(functools.partial(pb.scan, solver=solver), step)[mode])
    run = run.lower(*args).compile()
    got = run(*args)
    want = reference(NAME, 8, jnp.float32, mode, False)
    close(got, want)
    return got, collective_stats(run)

mesh = mesh_of(AxisType.Auto)
for mode in MODES:
    _, found = check(mode, mesh, mesh)
    # Nothing of a batch that is divided over 'data' goes over 'time' but each device's own rows.
    assert "all-gather" not in found and "all-to-all" not in found, found
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        if EXPLICIT:
            got, _ = check(mode, mesh_of(AxisType.Explicit))
            assert str(jax.typeof(got[-1])) == "float32[8@time,2@data,4]", jax.typeof(got[-1])
"""
)

MORE = (
    SETTING
    + """
mesh = line_mesh(4)
solver = pb.Sharded("time", mesh)
ours = functools.partial(pb.scan, solver=solver)
one = lambda scan: lambda h, x: modes(scan, step)["gradient"](p, h, x)  # noqa: E731
close(*(jax.jit(jax.vmap(one(scan), (0, 1)))(h, xs) for scan in (ours, lax.scan)))

again = jax.checkpoint(ours, static_argnums=0)
want = reference(NAME, 8, jnp.float32, "gradient", False)
close(jax.jit(modes(again, step)["gradient"])(p, h, xs), want)

def curvature(scan):
    slopes = lambda h: modes(scan, step)["gradient"](p, h, xs)  # noqa: E731
    return jax.jit(jax.grad(lambda h: sum((a**2).sum() for a in jax.tree.leaves(slopes(h)))))(h)
close(curvature(ours), curvature(lax.scan), 1e-4)

for part in (xs, xs[:7]):
    report = jax.jit(lambda h, x: ours(functools.partial(step, p), h, x, report=True)[2])(h, part)
    assert report.status == pb.Status.OK and report.residual < 1e-6, report
# The mesh is that of the arguments.
f = functools.partial(step, p)
found = functools.partial(pb.scan, f, solver=pb.Sharded("time"))
close(found(h, put(xs, mesh, "time")), jax.jit(functools.partial(lax.scan, f))(h, xs))
"""
)

TRAINING = (
    SETTING
    + """
import optax
from flax import linen, nnx
from parscan_bp import linen as our_linen, nnx as our_nnx

mesh = line_mesh(4)
inputs = jnp.swapaxes(xs, 0, 1)

def train(rnn, inputs, **how):
    model = rnn(nnx.GRUCell(4, 5, rngs=nnx.Rngs(0)), **how)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    @nnx.jit
    def step(model, optimizer, inputs):
        loss, grads = nnx.value_and_grad(lambda m: (m(inputs) ** 2).sum())(model)
        optimizer.update(model, grads)
        return loss
    losses = [step(model, optimizer, inputs) for _ in range(2)]
    return losses, jax.tree.leaves(nnx.state(model, nnx.Param))

solver = pb.Sharded("time", mesh)
trained = train(our_nnx.RNN, put(inputs, mesh, None, "time"), solver=solver)
close(trained, train(nnx.RNN, inputs), 1e-4)

theirs, own = linen.RNN(linen.GRUCell(5)), our_linen.RNN(linen.GRUCell(5), solver=solver)
weights = theirs.init(jax.random.key(0), inputs)
slopes = lambda rnn: jax.jit(jax.grad(lambda p: (rnn.apply(p, inputs) ** 2).sum()))(weights)
close(slopes(own), slopes(theirs), 1e-4)
"""
)


@pytest.mark.reads_compiled
def test_inside_shard_map_and_pmap(run_on_devices):
    run_on_devices(MANUAL, 4)


@pytest.mark.reads_compiled
def test_a_batch_on_another_axis(run_on_devices):
    run_on_devices(TWO_AXES.replace("MODES", "['gradient']").replace("EXPLICIT", "False"), 4)


@pytest.mark.reads_compiled
@pytest.mark.slow
def test_a_batch_on_another_axis_in_every_mode(run_on_devices):
    program = TWO_AXES.replace("MODES", "['gradient', 'product']").replace("if EXPLICIT", "if True")
    for name in ("diagonal", "dense"):
        run_on_devices(program.replace('NAME = "diagonal"', f"NAME = {name!r}"), 4)


@pytest.mark.reads_compiled
@pytest.mark.slow
@pytest.mark.parametrize("name", ["diagonal", "dense"])
def test_inside_shard_map_without_types(run_on_devices, name):
    run_on_devices(MANUAL_MORE.replace('NAME = "diagonal"', f"NAME = {name!r}"), 4)


@pytest.mark.reads_compiled
@pytest.mark.slow
@pytest.mark.parametrize("program", [MORE, TRAINING], ids=["more", "training"])
def test_further_contexts(run_on_devices, program):
    run_on_devices(program, 4)


def step(c, x):
    return 0.5 * c + x, c


def one_device(*names):
    return Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


def test_mistakes_are_named():
    mesh = one_device("rows")
    mistakes = {
        lambda: pb.Sharded("time", mesh): (ValueError, r"axis: got 'time'; the mesh has .*'rows'"),
        lambda: pb.Sharded(3): (TypeError, r"axis: got 3, of type int; the name of a mesh axis"),
        lambda: pb.Sharded("time", 4): (
            TypeError,
            r"mesh: got 4, of type int; a jax.sharding.Mesh",
        ),
        lambda: pb.Sharded("rows", method="ring"): (
            ValueError,
            r"method: got 'ring'; one of 'auto'",
        ),
        lambda: pb.Sharded("rows", link=2.0): (TypeError, r"link: got 2.0, of type float; a Link"),
        lambda: pb.Sharded("rows", inner="sweep"): (TypeError, r"inner: got 'sweep', of type str"),
        lambda: pb.Sharded("rows", inner=pb.Planned()): (
            NotImplementedError,
            r"Planned\(\) cannot",
        ),
        lambda: pb.Sharded("rows", inner=pb.Sweep(recompute=False)): (
            NotImplementedError,
            r"inner: Sweep\(recompute=False\) cannot be wrapped: it wants what a forward pass",
        ),
        lambda: pb.Sharded("rows", inner=pb.Sharded("rows")): (
            NotImplementedError,
            r"inner: Sharded\(axis='rows'\) cannot be wrapped: it is spread over devices itself",
        ),
        lambda: pb.scan(step, 0.0, jnp.ones(3), solver=pb.Sharded("time")): (
            TypeError,
            r"mesh: there is none with an axis 'time': not given, not that of the arrays",
        ),
        lambda: pb.solve(
            pb.Uniform(pb.operators.Diagonal(jnp.ones((3, 2))), jnp.ones((4, 2))),
            pb.Sharded("rows", mesh),
        ): (NotImplementedError, r"the program does not run on each device of 'rows' here"),
    }
    for mistake, (kind, message) in mistakes.items():
        with pytest.raises(kind, match=message):
            mistake()


def test_inputs_that_are_whole_on_each_device_are_refused():
    scan = lambda xs: pb.scan(step, 0.0, xs, solver=pb.Sharded("time"))  # noqa: E731
    how = {"mesh": one_device("time"), "in_specs": P(), "out_specs": P()}
    with pytest.raises(ValueError, match=r"xs: leaf 0 is the same on all devices of 'time'"):
        jax.shard_map(scan, **how)(jnp.ones(3))


def test_explain_tells_the_collectives():
    mesh = jax.sharding.AbstractMesh((8,), ("time",))
    turns = Traffic(7, 7 * 64)
    wide = lambda c, x: (jnp.tanh(c @ jnp.ones((16, 16), "float32") + x), None)  # noqa: E731
    like = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((16,), (8, 16))]
    for method in ("ppermute", "all_gather", "chain", "turns"):
        told = pb.explain(wide, *like, solver=pb.Sharded("time", mesh, method=method))
        expected = turns if method == "turns" else METHODS[method](8, 17 * 64, 64)
        assert told.collectives == {
            "forward": turns,
            "what enters each": Traffic(1, 64),
            "backward": expected,
        }
        assert "collectives: forward 7 of 448 bytes" in str(told)


@pytest.mark.parametrize("devices, n, steps", [(1, 9, 9), (4, 8, 5), (4, 9, 6), (8, 1000, 252)])
def test_steps_of_the_backward_pass(devices, n, steps):
    """2 ceil(T/P) + ceil(log2 P), the first map of a device being its own."""
    mesh = jax.sharding.AbstractMesh((devices,), ("time",))
    solver = pb.Sharded("time", mesh, method="ppermute")
    assert solver.complexity(n).steps == steps
    assert steps <= 2 * -(-n // devices) + (devices - 1).bit_length()
    assert pb.Sharded("time", mesh, method="turns").complexity(n).steps == n
