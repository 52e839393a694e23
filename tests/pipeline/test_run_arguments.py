"""All executors name the argument that is not what it should be."""

import dataclasses

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


@dataclasses.dataclass
class Unhashable:
    """A function that can be compared, and so has no hash."""

    def __call__(self, *args):
        return cross_entropy(*args)


EXECUTORS = {
    "Simulated": lambda params, **rest: pipeline.run([square], params=params, **rest),
    "Threads": lambda params, **rest: pipeline.run(
        [square], params=params, **rest, executor=pipeline.Threads()
    ),
    "Processes": lambda params, **rest: pipeline.run(
        [square], params=params, **rest, executor=pipeline.Processes()
    ),
    "Spmd": lambda params, **rest: pipeline.run(
        [square], params=params, **rest, executor=pipeline.Spmd(mesh=line(1))
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
        ({"loss": Unhashable()}, "loss: got .*, which has no hash"),
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


GIVEN = {"schedule": pipeline.GPipe(2), "optimiser": optax.sgd(0.1), "loss": cross_entropy}
GIVEN |= {"params": [jnp.eye(4)]}


@pytest.mark.parametrize("blocks", [square, 3, "square", pipeline.Block(lambda *a: a), {}])
@pytest.mark.parametrize("name", ["Simulated", "Threads", "Processes", "Pipeline"])
def test_blocks_are_a_sequence(name, blocks):
    with pytest.raises(TypeError, match=r"(blocks|layers): got .*; a sequence is wanted, a block"):
        if name == "Pipeline":
            pipeline.Pipeline(blocks, **GIVEN)
        else:
            executor = getattr(pipeline, name)()
            pipeline.run(blocks, **GIVEN, batches=data(3), executor=executor)


def test_what_is_not_trained_is_named():
    params = [{"kernel": jnp.eye(4), "steps": jnp.zeros(2, jnp.int32)}]
    with pytest.raises(
        TypeError, match=r"params\[0\]\['steps'\]: got int32\[2\]; all .* the state"
    ):
        block = lambda p, x: x @ p["kernel"]  # noqa: E731
        pipeline.run([block], **GIVEN | {"params": params}, batches=data(3))


def test_what_is_called_or_filled_is_looked_at_first():
    with pytest.raises(TypeError, match="observe: got 3, of type int; a function"):
        pipeline.Simulated(observe=3)
    with pytest.raises(TypeError, match=r"spans: got \(\), of type tuple; a list is wanted"):
        pipeline.Threads(spans=())
    with pytest.raises(TypeError, match=r"costs: got 0\.1, of type float; a Costs, or None"):
        pipeline.Threads(costs=0.1)
