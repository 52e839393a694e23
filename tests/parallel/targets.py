"""What the processes of `test_launch` do."""

import functools
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import parscan_bp as pb


def step(w, h, x):
    h = jnp.tanh(h @ w + x)
    return h, h


def loss(scan, w, h, xs):
    last, ys = scan(functools.partial(step, w), h, xs)
    return (last**2).sum() + (ys**3).sum()


def gradient_error(method: str) -> float:
    """The relative error of the parameters' gradient beside that of one process."""
    rng, length = np.random.default_rng(0), 2 * jax.device_count()
    w, h, xs = (rng.normal(size=s).astype("f4") for s in ((3, 3), (2, 3), (length, 2, 3)))
    mesh = Mesh(np.array(jax.devices()), ("time",))
    whole, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("time"))
    make = lambda a, to: jax.make_array_from_callback(a.shape, to, lambda at: a[at])  # noqa: E731
    scan = functools.partial(pb.scan, solver=pb.Sharded("time", mesh, method=method))
    run = jax.jit(jax.grad(functools.partial(loss, scan)), out_shardings=whole)
    got = np.asarray(run(make(w, whole), make(h, whole), make(xs, divided)))
    want = np.asarray(jax.jit(jax.grad(functools.partial(loss, jax.lax.scan)))(w, h, xs))
    return float(np.abs(got - want).max() / np.abs(want).max())


def everybody() -> float:
    """A sum over all devices, which waits for all processes."""
    mesh = Mesh(np.array(jax.devices()), ("time",))
    one = jax.make_array_from_callback(
        (jax.device_count(),), NamedSharding(mesh, P("time")), lambda at: np.ones(1, "f4")
    )
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(one)
    return float(np.asarray(total))


def fails(how: str) -> float:
    """The last process raises, dies or stalls, between two sums."""
    everybody()
    if jax.process_index() == jax.process_count() - 1:
        if how == "raise":
            raise ValueError("this process had enough")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    return everybody()
