"""A program in which `parscan_bp.scan` stands in the place of `jax.lax.scan`."""

import os
import pathlib
import subprocess
import sys

import pytest

import parscan_bp
from tests.optimisation import LITTLE

ROOT = pathlib.Path(parscan_bp.__file__).parent


def _run(program):
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT.parent)}
    env["XLA_FLAGS"] = LITTLE  # for the sake of time
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


PATCHED = """
import functools, jax, jax.numpy as jnp, numpy as np
import parscan_bp as pb
theirs = jax.lax.scan
jax.lax.scan = pb.scan

def step(h, x):
    inner = lambda c, _: (0.5 * c + jnp.sin(x), c)
    h = jnp.tanh(h + jax.lax.scan(inner, x, None, length=3)[0])
    return h, h

def loss(scan, h, xs):
    return (scan(step, h, xs)[1] ** 2).sum()

h, xs = jnp.ones(2), jnp.ones((5, 2))
want = jax.grad(functools.partial(loss, theirs), (0, 1))(h, xs)
for solver in (None, pb.Sweep(), pb.Blelloch()):
    scan = jax.lax.scan if solver is None else functools.partial(jax.lax.scan, solver=solver)
    got = jax.jit(jax.grad(functools.partial(loss, scan), (0, 1)))(h, xs)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-4)
squares = jax.lax.map(lambda v: v**2, xs)
sums = jax.lax.associative_scan(jnp.add, xs)
turns = jax.lax.fori_loop(0, 3, lambda i, v: 2 * v, h)
assert (squares == 1).all() and (sums[-1] == 5).all() and (turns == 8).all()
"""


def test_the_packages_own_loops_do_not_come_back_to_it():
    _run(PATCHED)


LAYERS = """
import jax, jax.numpy as jnp, numpy as np
from flax import linen, nnx
import parscan_bp as pb, parscan_bp.linen, parscan_bp.nnx

x, runs = jnp.ones((2, 5, 3)), []

class Counted(pb.Blelloch):
    def run(self, *args):
        runs.append(args)
        return super().run(*args)

def of_nnx(library, **options):
    rnn = library.RNN(nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0)), **options)
    loss = lambda rnn, x: (rnn(x) ** 2).sum()
    return nnx.jit(nnx.grad(loss, argnums=1))(rnn, x)

def of_linen(library, **options):
    rnn = library.RNN(linen.SimpleCell(4), **options)
    variables = rnn.init(jax.random.key(0), x)
    return jax.jit(jax.grad(lambda x: (rnn.apply(variables, x) ** 2).sum()))(x)

wanted = of_nnx(nnx), of_linen(linen)
jax.lax.scan = pb.scan
for gradient, ours, want in zip((of_nnx, of_linen), (parscan_bp.nnx, parscan_bp.linen), wanted):
    runs.clear()
    np.testing.assert_allclose(gradient(ours, solver=Counted()), want, rtol=1e-4, atol=1e-6)
    assert runs
np.testing.assert_allclose(of_nnx(nnx), wanted[0], rtol=1e-4, atol=1e-6)
"""


def test_layers_of_flax_keep_the_solver_that_they_name():
    pytest.importorskip("flax")
    _run(LAYERS)


OTHERS = """
import jax, jax.numpy as jnp
theirs, calls = jax.lax.scan, []
def scan(*args, **kwargs):
    calls.append(args)
    return theirs(*args, **kwargs)
jax.lax.scan = scan
import parscan_bp as pb
print(pb.scan(lambda c, x: (c * x, c), 1.0, jnp.full(3, 2.0), solver=pb.Sweep())[0], len(calls) > 0)
"""


def test_a_loop_that_somebody_else_put_there_is_used():
    assert _run(OTHERS).split() == ["8.0", "True"]


def test_no_loop_of_the_package_is_called_by_its_public_name():
    """All but what stands for a caller's program."""
    calls = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in ROOT.rglob("*.py")
        if path.parent.name != "conformance"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "lax.scan(" in line and "`" not in line and ">>>" not in line
    ]
    assert not calls, calls
