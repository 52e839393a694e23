"""A ResNet of flax.nnx trained by `Pipeline`, end to end."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import parscan_bp.nnx
from bench.paper.pipeline import networks, tasks
from bench.shared.bench import Options, Result
from parscan_bp import pipeline


class Unit(nnx.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))), with a 1 x 1 convolution where sizes change.

    Source: He et al., Identity Mappings in Deep Residual Networks (2016).
    """

    def __init__(self, inputs: int, channels: int, stride: int, rngs: nnx.Rngs):
        self.norms = nnx.List([nnx.BatchNorm(n, rngs=rngs) for n in (inputs, channels)])
        self.first = nnx.Conv(inputs, channels, (3, 3), (stride, stride), rngs=rngs)
        self.second = nnx.Conv(channels, channels, (3, 3), rngs=rngs)
        same = inputs == channels and stride == 1
        self.short = (
            None if same else nnx.Conv(inputs, channels, (1, 1), (stride, stride), rngs=rngs)
        )

    def __call__(self, x):
        h = nnx.relu(self.norms[0](x))
        short = x if self.short is None else self.short(h)
        return short + self.second(nnx.relu(self.norms[1](self.first(h))))


def model(width: int, classes: int, seed: int = 0) -> nnx.Sequential:
    """A convolution, six units in three stages, and a linear map of the mean."""
    rngs = nnx.Rngs(seed)
    layers, before = [nnx.Conv(3, width, (3, 3), rngs=rngs)], width
    for channels in (width, width, 2 * width, 2 * width, 4 * width, 4 * width):
        layers.append(Unit(before, channels, channels // before, rngs))
        before = channels
    head = [
        nnx.BatchNorm(before, rngs=rngs),
        nnx.relu,
        _mean,
        nnx.Linear(before, classes, rngs=rngs),
    ]
    return nnx.Sequential(*layers, *head)


def _mean(x):
    return x.mean((1, 2))


SCHEDULES: dict[str, pipeline.Schedule] = {
    "BP": pipeline.BackPropagation(),
    "DSP(1,1,0;4,2,0)": pipeline.DSP((1, 1, 0), (4, 2, 0)),
}


def measure(name: str, options: Options) -> Result:
    """Losses by epoch, accuracy on the test images, and the pipeline's report."""
    del name
    task = tasks.task_of("images", options)
    epoch = len(task.train.labels) // options.batch
    runs = []
    for schedule in SCHEDULES.values():
        own = parscan_bp.nnx.Pipeline(
            model(options.width, task.classes),
            split=3,
            schedule=schedule,
            optimiser=optax.sgd(options.lr, momentum=0.9),
            loss=networks.loss,
        )
        start = time.perf_counter()
        batches = tasks.Batches(task.train, options.batch, epoch * options.epochs, 0)
        losses = np.asarray(own.fit(batches))
        seconds = time.perf_counter() - start
        runs.append(
            {
                "schedule": str(schedule),
                "losses": losses.reshape(options.epochs, epoch).mean(1).tolist(),
                "accuracy": _accuracy(own.model(), task.test),
                "seconds": seconds,
                "split": list(own.split or ()),
                "report": str(own.report()),
            }
        )
        own.close()
    return {"runs": runs}


def _accuracy(trained: nnx.Sequential, test: tasks.Data) -> float:
    trained.eval()
    scores = jax.jit(lambda x: trained(x))(jnp.asarray(test.inputs))
    return float(np.mean(np.argmax(np.asarray(scores), -1) == test.labels))
