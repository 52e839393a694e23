"""Process grids for AlexNet: figures 4 and 6 to 10 of Gholami et al., compute measured here.

Figure 4, the time of a training iteration on one process by the size of its batch, is measured:
AlexNet as its layers come, and the same divided by a 1 x 1 grid. The others follow from it and
from what is sent on the paper's machine: by its equations as they are printed, and as our
compiled programs send (`parscan_bp.parallel.grids.cost`). The paper's own speedups stand beside
them, also where its equations do not give them.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bench.paper.grids import report
from bench.paper.grids.networks import CLASSES, IMAGE, alexnet
from bench.paper.images.cifar import Batch
from bench.paper.images.networks import loss, plain
from bench.shared import programs, timing
from bench.shared.bench import Bench, Listed, Option, Options, Result, effort, racing
from parscan_bp import layers as pb_layers
from parscan_bp.parallel import Grid, divide

QUANTITY = timing.VALUE_AND_GRAD
DIVIDED = "1 x 1 grid"


def measure(batch: int, options: Options) -> Result:
    """Times value and gradient for one batch.

    Raises:
        FloatingPointError: the divided stack's loss or gradient differs.
    """
    layers = alexnet(options.divisor)
    keys = jax.random.split(jax.random.key(options.seed), 3)
    params = pb_layers.init(layers, keys[0], IMAGE, jnp.float32)
    images = jax.random.normal(keys[1], (batch, *IMAGE), jnp.float32)
    data = Batch(images, jax.random.randint(keys[2], (batch,), 0, CLASSES))
    stack = divide(layers, IMAGE, Grid(), devices=jax.devices()[:1])

    def divided(layers: Any, params: Any, images: jax.Array) -> jax.Array:
        return stack(params, images)

    sides = {}
    for name, forward in (("plain", plain), (DIVIDED, divided)):
        run = programs.build(jax.value_and_grad(loss(layers, forward)), params, data)
        sides[name] = {QUANTITY: run.call}
    want, got = (side[QUANTITY]() for side in sides.values())
    error = programs.check_equal(want, got, 1e-4, f"batch {batch}")
    baseline = sides.pop("plain")
    race = timing.race(baseline, sides, **effort(options))
    comparison = race.compare(DIVIDED, QUANTITY).to_json()
    return {"batch": batch, "error": error, "iteration": comparison}


BENCH = Bench(
    "grids",
    __doc__,
    baseline="AlexNet by its plain layers (figure 4); a 1 x P grid, batch parallelism (others)",
    points=lambda options: {f"batch={batch}": batch for batch in options.batches},
    measure=measure,
    rows=Listed("compute"),
    text=report.text,
    options=(
        Option("batches", [1, 2, 4, 8, 16, 32, 64, 128, 256], "of one process"),
        Option("divisor", 1, "of the network's channels"),
        Option("seed", 0),
        *racing(9, 3, 60.0),
    ),
    quick={"batches": [1, 2], "divisor": 16},
    draw=report.draw,
    fixed=("seed", "divisor"),
)
