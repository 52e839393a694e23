"""All executors name the argument that is not what it should be."""

import jax
import jax.numpy as jnp
import optax
import pytest
from alike import line
from networks import cross_entropy, data

from parscan_bp import pipeline


def square(w, x):
    """x W."""
    return x @ w


EXECUTORS = {
    "simulate": lambda params, **rest: pipeline.simulate([square], params=params, **rest),
    "run_mpmd": lambda params, **rest: pipeline.run_mpmd([square], params=params, **rest),
    "run_processes": lambda params, **rest: pipeline.run_processes([square], params=params, **rest),
    "run_spmd": lambda params, **rest: pipeline.run_spmd(
        square, params=params, mesh=line(1), **rest
    ),
    "Pipeline": lambda params, batches, **rest: pipeline.Pipeline([square], params, **rest),
}


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"schedule": "GPipe"}, "schedule: got 'GPipe'"),
        ({"optimiser": optax.sgd}, r"optimiser: got .*; a pair \(init, update\)"),
        ({"optimiser": None}, "optimiser: got None"),
        ({"loss": None}, "loss: got None"),
        ({"key": 0}, "key: got 0, of type int; one random key"),
        ({"key": jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))}, "key: got"),
        ({"batches": iter([])}, "batches: got .*; a sequence of pairs"),
    ],
)
def test_it_is_named(name, new, words):
    if name == "Pipeline" and "batches" in new:
        pytest.skip("a Pipeline is fed batch by batch")
    given = {
        "params": [jnp.eye(4)],
        "schedule": pipeline.GPipe(2),
        "optimiser": optax.sgd(0.1),
        "loss": cross_entropy,
        "batches": data(3),
    }
    with pytest.raises(TypeError, match=words):
        EXECUTORS[name](**given | new)
