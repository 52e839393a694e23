"""Blocks whose passes take a given time, on threads that really wait for each other."""

import jax.numpy as jnp
import numpy as np
import optax

from bench.shared.bench import Options, Result
from parscan_bp import pipeline
from parscan_bp.pipeline import DSP, Costs, Span, Stragglers

BLOCKS = 3
SCHEDULES: dict[str, pipeline.Schedule] = {
    "BP": pipeline.BackPropagation(),
    "FR": pipeline.FeaturesReplay(),
    "GPipe(8)": pipeline.GPipe(8),
    "DSP(1,1,0;4,2,0)": DSP((1, 1, 0), (4, 2, 0)),
    "DSP(2,2,0;6,3,0)": DSP((2, 2, 0), (6, 3, 0)),
    "DSP(3,3,0;10,5,0)": DSP((3, 3, 0), (10, 5, 0)),
}


def measure(name: str, options: Options) -> Result:
    """The time a batch, and with stragglers, measured and modelled, in seconds."""
    schedule = SCHEDULES[name]
    count = options.batches + 2 * schedule.on_the_way(BLOCKS)
    table = schedule.table(BLOCKS, count)
    costs = Costs(options.forward_ms / 1e3, 2 * options.forward_ms / 1e3)
    _run(schedule, schedule.on_the_way(BLOCKS) + 1, None, None)  # compiles
    found = []
    for slow_down in (0.0, *options.slow_downs):
        slow = Stragglers(slow_down).factors(table.ticks, BLOCKS)
        spans = _run(schedule, count, costs, slow)
        found.append(
            {
                "slow_down": slow_down,
                "seconds": seconds_per_batch(spans, schedule.on_the_way(BLOCKS), count),
                "modelled": pipeline.time_per_batch(
                    schedule, BLOCKS, costs, batches=options.batches, slow=slow
                ),
            }
        )
    return {"runs": found}


def seconds_per_batch(spans: list[Span], ahead: int, batches: int) -> float:
    """While the pipeline is full: between the updates by which the batches are done."""
    done = [0.0] * batches
    for span in spans:
        if span.task.kind == "update":
            done[span.task.batch] = max(done[span.task.batch], span.stop)
    return (done[batches - 1 - ahead] - done[ahead]) / (batches - 1 - 2 * ahead)


def _scale(weight, x):
    return weight * x


def _error(y, labels):
    return jnp.mean((y - labels) ** 2)


_OPTIMISER = optax.sgd(1e-3)


def _run(schedule, batches: int, costs: Costs | None, slow) -> list[Span]:
    spans: list[Span] = []
    x = np.ones(8, np.float32)
    pipeline.run(
        [_scale] * BLOCKS,
        schedule,
        _OPTIMISER,
        _error,
        [jnp.ones(())] * BLOCKS,
        [(x, x)] * batches,
        executor=pipeline.Threads(costs=costs, slow=slow, spans=spans),
    )
    return spans
