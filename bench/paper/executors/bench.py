"""Pipelines that run: measured time a batch and stragglers beside the model, a ResNet end to end.

Everything runs by `parscan_bp.pipeline.Threads`: a thread a block, real queues, on the devices and
cores there are; how many is recorded.

    sleeping     every pass is padded by a sleep to 10 ms (F) or 20 ms (B), so that few cores act as
                 many devices: the time a batch of every schedule, and how much of a slow down of
                 20-150 % it feels (DSP's Table 2), measured and by the event model with the same
                 draws, the paper's numbers beside
    working      no sleeps: two blocks of a small ResNet that compute; the model takes the passes'
                 measured times and a device for each block
    resnet       a ResNet of flax.nnx trained by `parscan_bp.nnx.Pipeline` with DSP, beside the same
                 by back-propagation

    python -m bench executors --data FOLDER     CIFAR-10's binary files; generated images without
"""

import os
import pathlib

import jax

from bench.paper.executors import report, resnet, sleeping, working
from bench.shared.bench import Bench, Named, Option, Options, Points, Result

_PARTS = {"sleeping": sleeping.measure, "working": working.measure, "resnet": resnet.measure}


def points(options: Options) -> Points:
    """By what they need of the machine."""
    del options
    return {
        **{f"sleeping {name}": ("sleeping", name) for name in sleeping.SCHEDULES},
        **{f"working {name}": ("working", name) for name in working.SCHEDULES},
        "resnet": ("resnet", ""),
    }


def measure(point: tuple, options: Options) -> Result:
    """One point of one of the parts."""
    part, name = point
    return {"part": part, "schedule": name, **_PARTS[part](name, options)}


def about(options: Options) -> Result:
    """What the options do not say."""
    return {
        "settings": {
            "images": "generated" if options.data is None else "CIFAR-10",
            "cores": len(os.sched_getaffinity(0)),
            "jax_devices": jax.device_count(),
        }
    }


BENCH = Bench(
    "executors",
    __doc__,
    baseline="the event model of the schedule; without stragglers; back-propagation",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=report.text,
    options=(
        Option("data", None, "folder of CIFAR-10's binary files", kind=pathlib.Path),
        Option("batches", 60, "over which a time is taken, while the pipeline is full"),
        Option("slow-downs", [0.2, 0.5, 1.0, 1.5], "of a block that is slow, in a third of ticks"),
        Option("forward-ms", 10.0, "of a sleeping block; its backward pass takes twice as long"),
        Option("batch", 64),
        Option("epochs", 3),
        Option("train-images", 2000),
        Option("test-images", 500),
        Option("size", 16, "of the images, a divisor of 32"),
        Option("width", 8, "channels of the first residual unit"),
        Option("lr", 0.02),
    ),
    quick={
        "batches": 4,
        "slow_downs": [1.5],
        "forward_ms": 1.0,
        "batch": 8,
        "epochs": 1,
        "train_images": 80,
        "test_images": 20,
        "size": 8,
        "width": 2,
    },
    facts=about,
    fixed=("batches", "forward-ms", "batch", "epochs", "train-images", "size", "width", "lr"),
)
