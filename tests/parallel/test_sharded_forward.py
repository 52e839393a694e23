"""Methods of the forward pass over devices: each steps its own stretch, all side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import parscan_bp as pb

START = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax import lax
from jax.sharding import PartitionSpec as P
from tests.family import assert_derivatives_close
from tests.parallel.sharded_cases import case, line_mesh, modes, placed, reference

mesh = line_mesh(4)
SOLVER = pb.Sharded("time", mesh)
HOW = {"solver": SOLVER, "forward": pb.Chunks(rounds=3, tolerance=1e-11)}

def close(got, want, atol=1e-10):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, (a, b)
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)

def check(name, length, mode="gradient", reverse=False, **how):
    how = {**HOW, "reverse": reverse, **how}
    step, p, carry, xs = case(name, length, jnp.float64)
    run = jax.jit(modes(functools.partial(pb.scan, **how), step)[mode])
    want = reference(name, length, jnp.float64, mode, reverse)
    assert_derivatives_close(run(p, carry, placed(xs, mesh)), want, 1e-9)

def reported(f, init, xs, reverse=False, **how):
    how = {**HOW, "report": True, "reverse": reverse, **how}
    *got, report = jax.jit(functools.partial(pb.scan, f, **how))(init, xs)
    return got, jax.jit(functools.partial(lax.scan, f, reverse=reverse))(init, xs), report
"""

VALUES = (
    START
    + """
def gated(carry, x):
    h, c = carry["h"], carry["c"]
    c = 0.6 * jax.nn.sigmoid(h + x) * c + jnp.tanh(h - x)
    return {"h": jnp.tanh(c), "c": c}, (c, jnp.sin(c) * x, x > 0)

# Two, one and no step of a device; lengths that are no multiples of their number; reverse.
for length, reverse in LENGTHS:
    xs = jnp.sin(jnp.arange(2.0 * length)).reshape(length, 2)
    init = {"h": jnp.ones(2), "c": jnp.full(2, -0.5)}
    got, want, report = reported(gated, init, placed(xs, mesh), reverse)
    close(got, want)
    told = report.forward
    assert report.status == told.status == pb.Status.OK and not report.fell_back, report
    assert told.converged and told.error + told.floor <= told.tolerance, told
    assert jax.tree.structure(told.states) == jax.tree.structure(init)
    close(told.states["c"], want[1][0])
"""
)

ONE = VALUES.replace("LENGTHS", "((37, True),)")
ALL = (
    VALUES.replace("LENGTHS", "((37, False), (4, False), (3, False), (1, True))")
    + """
# Without inputs; and chunks of a device.
count = lambda x, _: (0.5 * x + 1, x)
how = {**HOW, "forward": pb.Chunks(4, tolerance=1e-11)}
got, _, report = pb.scan(count, 0.0, length=4096, **how, report=True)
assert abs(got - 2) < 1e-10 and report.forward.iterations == 1, report
check("diagonal", 37)
check("block", 8, reverse=True)
"""
)

ROUNDS = (
    START
    + """
logistic = lambda rate: lambda x, u: (rate * x * (1 - x) + u, x)
xs = placed(jnp.zeros(64), mesh)

# Device k is exact after k rounds, whatever the recurrence does.
for rounds in (1, 3):
    how = {"forward": pb.Chunks(1, rounds=rounds, fallback=False, tolerance=1e-11)}
    (_, got), (_, want), report = reported(logistic(3.9), 0.3, xs, **how)
    exact = 16 * (rounds + 1)
    np.testing.assert_array_equal(got[:exact], want[:exact])
    assert rounds == 3 or np.abs(got[exact:] - want[exact:]).max() > 0.1
    assert report.forward.iterations == rounds and report.forward.converged == (rounds == 3)
    assert report.status == pb.Status.UNCERTIFIED and not report.fell_back, report

# What is not certified is the sequential pass's, from device to device; so is what is not finite.
for length in (64, 63):
    got, want, report = reported(logistic(3.9), 0.3, jnp.zeros(length))
    assert report.fell_back and report.forward.fell_back and report.status == pb.Status.OK
    close(got, want, 0 if length == 64 else 1e-3)
got, want, report = reported(logistic(2.5), 0.3, xs.at[40].set(jnp.nan))
close(got, want)
assert report.status == report.forward.status == pb.Status.NON_FINITE and report.fell_back

# Under vmap for the entry that needs it, and for nobody else.
def last(scan, rate, **how):
    made = scan(logistic(rate), 0.3, xs, **how)
    return made[1][-1], made[2:]
both = lambda rates, scan, **how: jax.jit(jax.vmap(lambda r: last(scan, r, **how)))(rates)
rates = jnp.array([2.1, 3.9, 0.5])
got, (report,) = both(rates, pb.scan, report=True, **HOW)
want, _ = both(rates, lax.scan)
close(got, want)
assert report.forward.fell_back.tolist() == [False, True, False], report
slopes = jax.jit(jax.vmap(jax.grad(lambda r: last(pb.scan, r, **HOW)[0])))(rates[::2])
close(slopes, jax.vmap(jax.grad(lambda r: last(lax.scan, r)[0]))(rates[::2]))
"""
)

INSIDE = (
    START
    + """
step, p, h, xs = case("diagonal", 8, jnp.float64)
how = {**HOW, "solver": pb.Sharded("time")}
ours = functools.partial(pb.scan, **how)

def parts(scan, p, h, xs):
    last, ys = scan(functools.partial(step, p), h, xs)
    return (last**2).sum(), (ys**3).sum()

want = jax.jit(jax.value_and_grad(lambda *a: sum(parts(lax.scan, *a)), (0, 1, 2)))(p, h, xs)

def typed(p, h, xs):
    def loss(*args):
        last, own = parts(ours, *args)
        return last + lax.psum(own, "time")
    return jax.value_and_grad(loss, (0, 1, 2))(p, h, xs)

specs = {"mesh": mesh, "in_specs": (P(), P(), P("time"))}
out = (P(), (P(), P(), P("time")))
close(jax.jit(jax.shard_map(typed, **specs, out_specs=out))(p, h, xs), want)

# They do not say what differs: each device has its part of the loss, and gradients are summed.
def untyped(p, h, xs):
    def loss(*args):
        last, own = parts(ours, *args)
        return last / lax.axis_size("time") + own
    value, (of_p, of_h, of_xs) = jax.value_and_grad(loss, (0, 1, 2))(p, h, xs)
    return *lax.psum((value, of_p, of_h), "time"), of_xs

def by_pmap():
    run = jax.pmap(untyped, axis_name="time", in_axes=(None, None, 0), devices=jax.devices()[:4])
    value, of_p, of_h, of_xs = run(p, h, xs.reshape(4, 2, *xs.shape[1:]))
    of_p, of_h = jax.tree.map(lambda a: a[0], (of_p, of_h))
    return value[0], (of_p, of_h, of_xs.reshape(xs.shape))

close(by_pmap(), want)

def told(h, xs):
    return pb.scan(functools.partial(step, p), h, xs, report=True, **how)[2].forward

specs = {"mesh": mesh, "in_specs": (P(), P("time"))}
report = jax.jit(jax.shard_map(lambda *a: told(*a).status, **specs, out_specs=P()))(h, xs)
assert report == pb.Status.OK
"""
)

MORE = (
    START
    + """
for name, mode in (("diagonal", "jvp"), ("diagonal", "product"), ("factored", "product")):
    check(name, 37, mode)
for method in ("turns", "corrections", "all_gather"):
    check("diagonal", 37, solver=pb.Sharded("time", mesh, method=method))
check("dense", 50, forward=pb.Chunks(2, rounds=7))

# Of a batch that is divided over another axis, too, and of a mesh that the arrays say.
from jax.sharding import AxisType, NamedSharding
step, p, h, xs = case("diagonal", 8, jnp.float64)
for kind in (AxisType.Auto, AxisType.Explicit):
    both = jax.make_mesh((2, 2), ("data", "time"), axis_types=(kind,) * 2)
    put = lambda a, *spec: jax.device_put(a, NamedSharding(both, P(*spec)))
    args = jax.tree.map(put, p), put(h, "data"), put(xs, "time", "data")
    with jax.set_mesh(both):
        solver = pb.Sharded("time", both)
        run = modes(functools.partial(pb.scan, **{**HOW, "solver": solver}), step)["gradient"]
        got = jax.jit(run)(*args)
    close(got, reference("diagonal", 8, jnp.float64, "gradient", False))

xs = placed(jnp.sin(jnp.arange(64.0)), mesh)
halved = lambda c, x: (0.5 * c + x, c)
found = functools.partial(pb.scan, halved, 0.0, **{**HOW, "solver": pb.Sharded("time")})
close(found(xs), lax.scan(halved, 0.0, xs))

from flax import nnx
import parscan_bp.nnx
x = jnp.sin(jnp.arange(2 * 41 * 3.0)).reshape(2, 41, 3)
def result(library, **how):
    layer = library.RNN(nnx.GRUCell(3, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(0)), **how)
    return nnx.jit(nnx.value_and_grad(lambda layer: jnp.sum(jnp.sin(layer(x)))))(layer)
close(result(parscan_bp.nnx, **HOW), result(nnx))
"""
)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ONE, id="one"),
        pytest.param(ALL, id="all", marks=pytest.mark.slow),
        pytest.param(ROUNDS, id="rounds", marks=pytest.mark.slow),
        pytest.param(INSIDE, id="inside", marks=pytest.mark.slow),
        pytest.param(MORE, id="more", marks=pytest.mark.slow),
    ],
)
def test_devices_step_side_by_side(run_on_devices, program):
    run_on_devices(program, 4, x64=True)


def step(c, x):
    return jnp.tanh(0.5 * c + x), c


def on_one_device(**how):
    mesh = Mesh(np.array(jax.devices()[:1]), ("time",))
    return {"solver": pb.Sharded("time", mesh), **how}


@pytest.mark.parametrize("name", ["newton", "fixed_point", "frozen_activations"])
def test_methods_that_want_one_place_say_so(name):
    with pytest.raises(NotImplementedError, match=r"forward=.*Sharded\(.*this takes them in one"):
        pb.scan(step, 0.0, jnp.ones(8), **on_one_device(forward=name))


def test_a_bound_wants_one_place():
    with pytest.raises(NotImplementedError, match=r"certify='bound'.*'estimate' go over devices"):
        pb.scan(step, 0.0, jnp.ones(8), **on_one_device(forward=pb.Chunks(certify="bound")))


def test_what_was_measured_is_of_one_place():
    found = pb.explain(step, 0.0, jnp.ones(8), **on_one_device(forward="auto"))
    assert found.forward.forward == "exact" and "not by Sharded(" in found.forward.reason


def test_what_a_method_sends_is_not_known():
    sent = [
        pb.explain(step, 0.0, jnp.ones(8), **on_one_device(forward=name)).collectives
        for name in ("exact", "chunks")
    ]
    assert sent[0].keys() - sent[1].keys() == {"forward"}


def test_one_device_is_the_whole_line():
    xs = jnp.sin(jnp.arange(40.0))
    how = on_one_device(forward=pb.Chunks(4), report=True)
    *got, report = jax.jit(lambda xs: pb.scan(step, 0.0, xs, **how))(xs)
    for a, b in zip(got, jax.lax.scan(step, 0.0, xs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert report.forward.status == pb.Status.OK and report.forward.iterations == 2
