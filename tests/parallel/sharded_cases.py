"""Scans of every structure over virtual devices, their derivatives beside those of `lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import parscan_bp as pb
from tests.family import assert_derivatives_close

H, B = 4, 2
CASES = ("dense", "diagonal", "factored", "block", "tree")
TOLERANCE = {"float64": 1e-10, "float32": 3e-5, "bfloat16": 6e-2}


def dense(p, h, x):
    h = h + 0.3 * jnp.sin(h @ p["w"] + p["b"] + x)
    return h, h**2


def diagonal(p, h, x):
    h = jax.nn.sigmoid(x) * h + jnp.tanh(p["b"] * x)
    return h, jnp.sin(h)


def tree(p, carry, x):
    """Leaves that count and reset beside those that are differentiated."""
    h, (speed, k), on = carry
    new = jnp.tanh(h @ p["w"] + x + speed)
    h = jnp.where((k % 3 == 2)[..., None], 0.1 * h, new)
    speed = 0.9 * speed + jnp.where(on, h, 0)
    return (h, (speed, k + 1), ~on), {"h": h, "mean": speed.mean(-1)}


def case(name, length, dtype):
    """``(step, params, carry, xs)``."""
    rng = np.random.default_rng(length)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    p = {"w": draw(H, H) / 2, "b": draw(H)}
    h, xs = draw(B, H), draw(length, B, H)
    cells = {"factored": pb.cells.Elman(), "block": pb.cells.LSTM()}
    if name in cells:
        cell = cells[name]
        p = jax.tree.map(lambda a: a.astype(dtype), cell.init(jax.random.key(0), H, H))
        carry = (h, draw(B, H)) if name == "block" else h
        return cell, p, carry, xs
    if name == "tree":
        carry = (h, (0.1 * h, jnp.zeros(B, int)), jnp.array(True))
        return tree, p, carry, xs
    return {"dense": dense, "diagonal": diagonal}[name], p, h, xs


def modes(scan, step):
    """Of params, carry and inputs: the gradient, tangents, and a Hessian times a vector."""

    def loss(p, carry, xs):
        last, ys = scan(functools.partial(step, p), carry, xs)
        floats = [a for a in jax.tree.leaves((last, ys)) if jnp.issubdtype(a.dtype, jnp.inexact)]
        weights = (jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape) for a in floats)
        return sum((w * jnp.sin(a)).sum() for a, w in zip(floats, weights, strict=True))

    gradient = jax.grad(loss, (0, 1, 2), allow_int=True)

    def along(p, xs):
        return jax.tree.map(jnp.cos, p), jnp.sin(xs)

    def jvp(p, carry, xs):
        return jax.jvp(lambda p, xs: loss(p, carry, xs), (p, xs), along(p, xs))

    def product(p, carry, xs):
        slopes = lambda p, xs: [gradient(p, carry, xs)[k] for k in (0, 2)]  # noqa: E731
        return jax.jvp(slopes, (p, xs), along(p, xs))[1]

    return {"gradient": gradient, "jvp": jvp, "product": product}


@functools.cache
def reference(name, length, dtype, mode, reverse):
    step, *args = case(name, length, dtype)
    scan = functools.partial(lax.scan, reverse=reverse)
    return jax.jit(modes(scan, step)[mode])(*args)


def line_mesh(devices):
    return Mesh(np.array(jax.devices()[:devices]), ("time",))


def placed(xs, mesh):
    """Inputs as a caller would have them: divided where they can be."""
    if len(xs) % mesh.shape["time"]:
        return xs
    return jax.device_put(xs, NamedSharding(mesh, P("time")))


def check(devices, length, name, *, mode="gradient", dtype=jnp.float32, reverse=False, **options):
    """Compares one derivative with that of `lax.scan` on one device."""
    step, p, carry, xs = case(name, length, dtype)
    mesh = line_mesh(devices)
    solver = pb.Sharded("time", mesh, **options)
    scan = functools.partial(pb.scan, solver=solver, reverse=reverse)
    got = jax.jit(modes(scan, step)[mode])(p, carry, placed(xs, mesh))
    want = reference(name, length, dtype, mode, reverse)
    floats = lambda tree: [  # noqa: E731
        a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)
    ]
    where = {"case": f"{name}, {length} steps, {devices} devices, {options}", "mode": mode}
    tolerance = TOLERANCE[jnp.dtype(dtype).name]
    assert_derivatives_close(floats(got), floats(want), tolerance, **where)
