"""Modelled speed and stragglers, beside what DSP reports: its Tables 2 and 3."""

from bench.shared.bench import Options, Result
from parscan_bp import pipeline
from parscan_bp.pipeline import DSP

SLOW_DOWNS = (0.2, 0.5, 1.0, 1.5)
TABLE_2 = {
    "FR": (8.977, 28.52, 97.06, 359.2),
    "DSP(1,1,0;4,2,0)": (6.017, 16.14, 37.44, 70.99),
    "DSP(2,2,0;6,3,0)": (7.465, 16.01, 36.57, 54.57),
    "DSP(3,3,0;10,5,0)": (7.391, 18.15, 32.10, 53.42),
}
"""Slow down in percent on ResNet164, K = 3, when GPUs are slowed down by `SLOW_DOWNS`."""
OVERLAPPED = "DSP, overlapped"
_STRAGGLING: dict[str, pipeline.Schedule] = {
    "FR": pipeline.FeaturesReplay(),
    "DSP(1,1,0;4,2,0)": DSP((1, 1, 0), (4, 2, 0)),
    "DSP(2,2,0;6,3,0)": DSP((2, 2, 0), (6, 3, 0)),
    "DSP(3,3,0;10,5,0)": DSP((3, 3, 0), (10, 5, 0)),
    "BP": pipeline.BackPropagation(),
    "GPipe(8)": pipeline.GPipe(8),
    "PipeDream": pipeline.PipeDream(),
}
TABLE_3 = {
    "ResNet164, CIFAR-10": (4, {"FR": 1.7, "DSP": 2.7}),
    "ResNeXt-29, CIFAR-10": (4, {"FR": 1.3, "DSP": 2.4}),
    "VGG-19, CIFAR-10": (3, {"FR": 1.1, "DSP": 1.5}),
    "ResNet1001, CIFAR-100": (4, {"FR": 1.9, "DSP": 4.8}),
    "ResNet50, ImageNet": (3, {"FR": 1.6, "DSP": 3.0}),
    "ResNet101, ImageNet": (4, {"FR": 1.7, "GPipe": 2.2, "DSP": 2.7}),
}
"""K and speedups over BP on one GPU, or over BP-K (ResNet1001 and ResNet50)."""


def points(options: Options) -> dict[str, tuple]:
    """Both tables."""
    del options
    return {"speed": ("speed",), "stragglers": ("stragglers",)}


def speed(options: Options) -> Result:
    """Speedups over BP of K equal blocks, with F : B = 1 : 2."""
    del options
    table = {}
    for blocks in (3, 4):
        schedules: dict[str, pipeline.Schedule] = {
            "BP": pipeline.BackPropagation(),
            "FR": pipeline.FeaturesReplay(),
            "DDG": pipeline.DelayedGradients(),
            "GPipe": pipeline.GPipe(8),
            "1F1B": pipeline.OneFOneB(8),
            "zero bubble": pipeline.ZeroBubble(8),
            "PipeDream": pipeline.PipeDream(),
            "2BW": pipeline.PipeDream2BW(8),
            "DSP": DSP((1,) * (blocks - 1) + (0,), tuple(range(0, 2 * blocks, 2))[::-1]),
        }
        for transfer in (0.0, 0.5):
            costs = pipeline.Costs(transfer=transfer)
            times = {
                name: pipeline.time_per_batch(s, blocks, costs) for name, s in schedules.items()
            }
            speedups = {name: times["BP"] / seconds for name, seconds in times.items()}
            speedups[OVERLAPPED] = overlapped(blocks, costs)
            table[f"K={blocks}, transfer {transfer:g} F"] = speedups
    return {"part": "speed", "speedups": table}


def overlapped(blocks: int, costs: pipeline.Costs) -> float:
    """Of DSP where a block is linearised again beside another batch's forward pass.

    Section 3.3: a batch takes (T_F + T_B) / K, of equal blocks.
    """
    busy = max(map(sum, zip(*costs.per_block(blocks), strict=True)))
    return pipeline.time_per_batch(pipeline.BackPropagation(), blocks, costs) / busy


def stragglers(options: Options) -> Result:
    """Slow down in percent, of blocks that are slow with probability 1/3 in a tick."""
    slow = {
        name: [
            100
            * pipeline.straggler_slow_down(
                schedule, 3, pipeline.Stragglers(s), batches=options.straggling
            )
            for s in SLOW_DOWNS
        ]
        for name, schedule in _STRAGGLING.items()
    }
    return {"part": "stragglers", "slow_downs": list(SLOW_DOWNS), "percent": slow}
