"""A recurrent network trained twice, through jax.lax.scan and through parscan_bp.scan.

Both sides start from the same parameters and see the same batches, step by step in turn, so a
drift of the machine meets both. The baseline is plain jitted `jax.grad` of `jax.lax.scan`
(`--unroll` moves it one rung up). A third side trains through `lax.scan` from parameters one ulp
away: the two are to be no further apart than these.
"""

import functools
from typing import Any

import numpy as np
import optax

import parscan_bp
from bench.paper.recurrent import bitstream
from bench.shared import candidates, programs, timing
from bench.shared.bench import Option, Options, Result, effort, racing
from bench.shared.training import Trainer, Training, control_of, train_sides

BASELINE, OURS = "jax.lax.scan", "parscan_bp.scan"
CONTROL = control_of(BASELINE)
STEP = "step"
PHASES = {
    timing.VALUE: "value alone",
    timing.FORWARD: "forward, residuals kept",
    timing.BACKWARD: "backward = whole - forward",
    timing.VALUE_AND_GRAD: "value_and_grad",
    STEP: "training step, with Adam",
}
OPTIONS = (
    Option("batch", 16),
    Option("steps", 400, "training steps of each side"),
    Option("hidden", 20),
    Option("solver", candidates.AUTO, choices=tuple(candidates.SOLVERS)),
    Option("seed", 0),
    Option("unroll", 1, "of the baseline's lax.scan"),
    *racing(),
)


def measure(
    cell: Any, params: Any, data: Any, rng: np.random.Generator, options: Options
) -> tuple[Result, dict[str, Training]]:
    """Checks the gradients, times the phases, trains all sides.

    Args:
        cell: of `parscan_bp.cells`.
        params: see `bitstream.init`.
        data: what has `labels` and `batch(rows)`.
        rng: shuffles.
        options: those of `OPTIONS`, and `lr`.

    Returns:
        What is recorded but for the trainings, and these.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    batch = data.batch(np.arange(options.batch))
    scans = {
        BASELINE: candidates.baseline(options.unroll),
        OURS: candidates.candidate(options.solver),
    }
    trainers = {
        side: Trainer(functools.partial(bitstream.loss, cell, scan), optax.adam(options.lr))
        for side, scan in scans.items()
    }
    made = {side: _programs(trainer, params, batch) for side, trainer in trainers.items()}
    allowed, error = _check(made, params, batch)
    lanes = {side: programs.calls(own) for side, own in made.items()}
    outcome = timing.race(lanes[BASELINE], {OURS: lanes[OURS]}, **effort(options))
    rows = bitstream.shuffled(rng, len(data.labels), options.batch)
    steps = {side: own[STEP] for side, own in made.items()}
    trainings = train_sides(steps, trainers, params, map(data.batch, rows), options.steps)
    entry = {
        "choice": _choice(cell, params, batch, options.solver),
        "gradient_error": error,
        "gradient_tolerance": allowed,
        "phases": outcome.to_json(OURS, PHASES),
        "programs": {side: programs.to_json(own) for side, own in made.items()},
    }
    return entry, trainings


def curve_difference(plain: list[float], other: list[float]) -> float:
    """The largest difference of two loss curves, relative to the first."""
    return float(np.max(np.abs(np.subtract(other, plain)) / np.abs(plain)))


def _programs(trainer: Trainer, params: Any, batch: bitstream.Batch) -> dict[str, programs.Program]:
    pieces = programs.derivatives(trainer.loss)
    made = {
        name: programs.build(pieces[name], params, params, batch)
        for name in (timing.VALUE, timing.FORWARD, timing.VALUE_AND_GRAD)
    }
    return {**made, STEP: programs.build(trainer.step, trainer.start(params), batch)}


def _check(made: dict[str, Any], params: Any, batch: bitstream.Batch) -> tuple[float, float]:
    """The tolerance of the gradients, and how far apart they are."""
    plain, ours = (made[side][timing.VALUE_AND_GRAD] for side in (BASELINE, OURS))
    wanted, up = plain.call(), programs.one_ulp_up(params)
    length, rows, _ = batch.inputs.shape
    allowed = programs.tolerance(wanted, plain.run(up, up, batch), length * rows)
    return allowed, programs.check_equal(wanted, ours.call(), allowed, "value_and_grad")


def _choice(cell: Any, params: Any, batch: bitstream.Batch, solver: str) -> str:
    """What the scan of the batch is planned to be solved by."""
    rows, hidden = batch.inputs.shape[1], params["head"].shape[0]
    carry = cell.initial_carry((rows,), hidden, batch.inputs.dtype)
    step = functools.partial(cell, params["cell"])
    plan = parscan_bp.explain(step, carry, batch.inputs, solver=candidates.SOLVERS[solver])
    return str(plan.choice)
