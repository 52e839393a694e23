"""Blocks that compute, on the cores there are, beside what the model makes of their times."""

import statistics

import numpy as np
import optax

from bench.paper.executors.sleeping import seconds_per_batch
from bench.paper.pipeline import networks
from bench.shared.bench import Options, Result
from parscan_bp import pipeline
from parscan_bp.pipeline import DSP, Costs, Span

BLOCKS = 2
SCHEDULES: dict[str, pipeline.Schedule] = {
    "BP": pipeline.BackPropagation(),
    "FR": pipeline.FeaturesReplay(),
    "GPipe(4)": pipeline.GPipe(4),
    "1F1B(4)": pipeline.OneFOneB(4),
    "DSP(1,0;2,0)": DSP((1, 0), (2, 0)),
    "PipeDream": pipeline.PipeDream(),
}
_CLASSES = 10


def measure(name: str, options: Options) -> Result:
    """Seconds a batch, and those of the model from the passes' times when nobody disturbs them."""
    schedule = SCHEDULES[name]
    ahead = schedule.on_the_way(BLOCKS)
    count = options.batches + 2 * ahead
    network = networks.cut(
        "resnet", BLOCKS, (options.size, options.size, 3), _CLASSES, options.width
    )
    rng = np.random.default_rng(0)
    shape = (options.batch, options.size, options.size, 3)
    batch = rng.normal(size=shape).astype(np.float32), rng.integers(_CLASSES, size=options.batch)

    def run(schedule: pipeline.Schedule, batches: int) -> list[Span]:
        spans: list[Span] = []
        params, states = network.init(0)
        pipeline.run(
            network.blocks,
            schedule,
            _OPTIMISER,
            networks.loss,
            params,
            [batch] * batches,
            states=states,
            executor=pipeline.Threads(spans=spans),
        )
        return spans

    # One batch at a time: no two blocks work at once.
    run(pipeline.BackPropagation(), 2)  # compiles
    alone = run(pipeline.BackPropagation(), 8)
    passes = {kind: _medians(alone, kind) for kind in ("forward", "backward")}
    costs = Costs(passes["forward"], passes["backward"])
    run(schedule, ahead + 1)  # compiles
    seconds = seconds_per_batch(run(schedule, count), ahead, count)
    modelled = pipeline.time_per_batch(schedule, BLOCKS, costs, batches=options.batches)
    return {"seconds": seconds, "modelled": modelled, **passes}


_OPTIMISER = optax.sgd(0.01, momentum=0.9)


def _medians(spans: list[Span], kind: str) -> tuple[float, ...]:
    own = [[s for s in spans if s.task.kind == kind and s.task.block == k] for k in range(BLOCKS)]
    return tuple(statistics.median(s.stop - s.start for s in each) for each in own)
