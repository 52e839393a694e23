"""`jax.shard_map` and `jax.pmap`: the same parameters on all devices, rows split over them."""

import pytest

PROGRAM = """
import functools, re
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
from tests.family import assert_derivatives_close

H, B, T = 4, 6, 20
HALVES = np.full(H, 0.5, np.float32)
keys = jax.random.split(jax.random.key(0), 4)
cell = pb.cells.GRU()

def oscillator(p):
    def step(h, x):
        h = h + 0.1 * jnp.sin(h @ p["w"] + p["b"] + x)
        return h, h
    return step

def nested(p):
    def step(h, x):
        a = jax.jit(lambda h: jnp.tanh(h @ p["w"] + p["b"]) * HALVES)(h)
        b = jax.checkpoint(lambda h: jnp.sin(h @ p["w"]))(h)
        c = lax.scan(lambda h, _: (jnp.tanh(h * p["b"] + a), None), b, None, length=2)[0]
        h = lax.cond(p["b"][0] > 0, lambda: a + p["b"], lambda: c * p["b"])
        return h, h
    return step

plain = {"w": jax.random.normal(keys[0], (H, H)) / 2, "b": jax.random.normal(keys[1], (H,))}
steps = {
    "cell": (lambda p: functools.partial(cell, p), cell.init(keys[2], H, H)),
    "oscillator": (oscillator, plain),
    "nested": (nested, plain),
}
h0 = jnp.ones((B, H))
xs = jax.random.normal(keys[3], (T, B, H))
mesh = Mesh(np.array(jax.devices()), ("rows",))
specs = dict(mesh=mesh, in_specs=(P(), P("rows"), P(None, "rows")))

def modes(scan, step, total):
    def loss(p, h0, xs):
        last, ys = scan(step(p), h0, xs)
        return (last**2).sum() + (ys[::3] ** 2).sum()
    gradient = jax.grad(loss, (0, 1, 2))
    like = lambda p: jax.tree.map(jnp.cos, p)
    def product(p, h0, xs):
        return jax.jvp(lambda p: gradient(p, h0, xs), (p,), (like(p),))[1]
    def jvp(p, h0, xs):
        push = lambda p, xs: loss(p, h0, xs)
        return total(jax.jvp(push, (p, xs), (like(p), jnp.sin(xs)))[1])
    each = (P(), P("rows"), P(None, "rows"))
    return {"gradient": (gradient, each), "product": (product, each), "jvp": (jvp, P())}

@functools.cache
def reference(name, mode):
    step, p = steps[name]
    return jax.jit(modes(lax.scan, step, lambda t: t)[mode][0])(p, h0, xs)

def check_shard_map(solver, name, wanted):
    step, p = steps[name]
    ours = functools.partial(pb.scan, solver=solver)
    for mode, (f, out) in modes(ours, step, lambda t: lax.psum(t, "rows")).items():
        if mode not in wanted:
            continue
        run = jax.jit(jax.shard_map(f, out_specs=out, **specs)).lower(p, h0, xs).compile()
        where = dict(case=f"{name} by {solver}", mode=mode)
        assert_derivatives_close(run(p, h0, xs), reference(name, mode), 3e-5, **where)
        if mode == "gradient" and name != "nested":
            found = re.findall(r" (all-[a-z]+|reduce-scatter)(?:-start)?\\(", run.as_text())
            assert found == ["all-reduce"], (solver, name, found)

def check_pmap(solver, name):
    step, p = steps[name]
    split = lambda a, axis: jnp.stack(jnp.split(a, 2, axis))
    gradient = modes(functools.partial(pb.scan, solver=solver), step, None)["gradient"][0]
    summed = lambda *args: lax.psum(gradient(*args)[0], "rows")
    run = jax.pmap(summed, axis_name="rows", in_axes=(None, 0, 0))
    got = jax.tree.map(lambda u: u[0], run(p, split(h0, 0), split(xs, 1)))
    where = dict(case=f"{name} by {solver}", mode="pmap")
    assert_derivatives_close(got, reference(name, "gradient")[0], 3e-5, **where)

for solver in (pb.Sweep(chunk=7), pb.Sweep(recompute=False), pb.Blelloch()):
    every = ("gradient", "product", "jvp") if solver == pb.Sweep(chunk=7) else ("gradient",)
    check_shard_map(solver, "cell", every)
    check_shard_map(solver, "oscillator", every)
    check_shard_map(solver, "nested", ("gradient",))
    check_pmap(solver, "oscillator")
"""


@pytest.mark.reads_compiled
def test_derivatives_are_those_of_the_whole_batch(run_on_devices):
    run_on_devices(PROGRAM, 2)
