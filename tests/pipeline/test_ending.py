"""A process that ends with a pipeline at work, or with one that failed, is not aborted."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from parscan_bp import pipeline

def calling(function):
    def apply(params, state, x, key):
        seen = jax.pure_callback(function, x, jax.lax.stop_gradient(x))
        return x * params + 0 * seen, state
    return pipeline.Block(apply)

def slowly(x):
    for _ in range(50):
        time.sleep(0.01)
    return np.asarray(x)

def failing(x):
    raise RuntimeError("this block fails")

above = failing if "fails" in sys.argv[1] else slowly
own = pipeline.Pipeline(
    [calling(slowly), calling(above)], [jnp.ones(())] * 2, split=(1, 1),
    schedule=pipeline.DSP((1, 0), (2, 0)), optimiser=optax.sgd(0.1),
    loss=lambda y, labels: jnp.mean((y - labels) ** 2))
batch = (jnp.ones(4), jnp.ones(4))
own.step(batch)
own.step(batch)
try:
    while "fails" in sys.argv[1]:
        own.step(batch)
except Exception as error:
    assert "this block fails" in str(error), error
    if sys.argv[1] == "fails":
        raise
time.sleep(0.2)
"""


@pytest.mark.parametrize(("how", "code"), [("fails", 1), ("fails and is caught", 0), ("works", 0)])
def test_the_process_ends_as_it_should(how, code):
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, how]
    env = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=120)
    assert ended.returncode == code, ended.stderr
    assert "terminate called" not in ended.stderr and "Fatal" not in ended.stderr
