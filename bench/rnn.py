"""Training an RNN on bitstreams, through jax.lax.scan and through parscan_bp.scan (BPPSA 4.1).

Both sides start from the same parameters and see the same batches, step by step in turn, so a
drift of the machine meets both. The baseline is plain jitted `jax.grad` of `jax.lax.scan`
(`--unroll` moves it one rung up). The paper trains 32000 streams of 1000 bits for 80 epochs at a
learning rate of 1e-5, 160000 steps:

    python -m bench rnn --lr 1e-5 --train-samples 32000 --steps 160000

The defaults learn visibly in a few hundred steps instead. At a much higher rate (3e-3) the
gradients of a long stream explode now and then, and from there training is chaotic: so a third
side trains through lax.scan from parameters one ulp away, and the two sides are to be no further
apart than these.
"""

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import parscan_bp
from bench import bitstream, candidates, programs, record, rnn_report, timing
from bench.training import Trainer, train_sides

CELLS = {
    "rnn": parscan_bp.cells.Elman(),
    "gru": parscan_bp.cells.GRU(),
    "lstm": parscan_bp.cells.LSTM(),
}
TEST_SAMPLES = 512


def main(argv: Sequence[str]) -> None:
    """Checks the gradients, trains both sides, times the phases, writes JSON and two plots.

    Raises:
        FloatingPointError: the gradients of the two sides differ.
    """
    options = _parser().parse_args(argv)
    run = record.environment(argv)
    rng = np.random.default_rng(options.seed)
    train = bitstream.draw(rng, options.train_samples, options.T)
    test = bitstream.draw(rng, TEST_SAMPLES, options.T)
    cell = CELLS[options.cell]
    params = bitstream.init(cell, jax.random.key(options.seed), options.hidden)
    batch = train.batch(np.arange(options.batch))

    losses = {
        rnn_report.BASELINE: loss_of(cell, candidates.baseline(options.unroll)),
        rnn_report.OURS: loss_of(cell, candidates.candidate(options.solver)),
    }
    trainers = {side: Trainer(loss, optax.adam(options.lr)) for side, loss in losses.items()}
    made = build_sides(losses, trainers, params, batch)
    allowed, error = check_gradients(made, params, batch, options.T * options.batch)
    phases = race_sides(made, options)
    rows = bitstream.shuffled(rng, options.train_samples, options.batch)
    steps = {side: own[rnn_report.STEP] for side, own in made.items()}
    trainings = train_sides(steps, trainers, params, map(train.batch, rows), options.steps)
    curves = {side: training.losses for side, training in trainings.items()}
    result = {
        "runs": [{**run, "load_end": record.load_average()}],
        "settings": _settings(options),
        "choice": choice_of(cell, params, batch, options.solver),
        "gradient_error": error,
        "gradient_tolerance": allowed,
        "phases": phases,
        "programs": {
            side: {name: program.to_json() for name, program in own.items()}
            for side, own in made.items()
        },
        "training": {
            side: {
                "losses": training.losses,
                "seconds": training.seconds,
                "accuracy": bitstream.accuracy(cell, training.params, test),
            }
            for side, training in trainings.items()
        },
        "loss_curve_difference": {
            side: rnn_report.curve_difference(curves[rnn_report.BASELINE], curves[side])
            for side in (rnn_report.OURS, rnn_report.CONTROL)
        },
    }
    record.write(record.result_path(options), result)
    print(rnn_report.text(result))
    for suffix, draw in rnn_report.FIGURES.items():
        path = record.result_path(options, f"_{suffix}.png")
        draw(result, path)
        print(f"drew {path.name}")


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("rnn")
    parser = argparse.ArgumentParser("python -m bench rnn", parents=[shared])
    parser.add_argument("--T", type=int, default=1000, help="bits of a stream (paper: to 30000)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=400, help="training steps of each side")
    parser.add_argument("--hidden", type=int, default=20)
    parser.add_argument("--solver", choices=tuple(candidates.SOLVERS), default=candidates.AUTO)
    parser.add_argument("--cell", choices=tuple(CELLS), default="rnn")
    parser.add_argument("--lr", type=float, default=5e-4, help="of Adam (paper: 1e-5, GRU 3e-4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-samples", type=int, default=4096, help="paper: 32000")
    parser.add_argument("--unroll", type=int, default=1, help="of the baseline's lax.scan")
    parser.add_argument("--rounds", type=int, default=25, help="timing rounds at most")
    parser.add_argument("--min-rounds", type=int, default=15, help="and at least")
    parser.add_argument("--budget-seconds", type=float, default=15.0, help="for all rounds")
    return parser


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    skipped = ("record", "out", "name")
    return {name: value for name, value in vars(options).items() if name not in skipped}


def build_sides(
    losses: dict[str, programs.Loss],
    trainers: dict[str, Trainer],
    params: Any,
    batch: bitstream.Batch,
) -> dict[str, dict[str, programs.Program]]:
    """The compiled programs of both sides."""
    return {side: _programs(losses[side], params, batch, trainers[side]) for side in losses}


def _programs(
    loss: programs.Loss, params: Any, batch: bitstream.Batch, trainer: Trainer
) -> dict[str, programs.Program]:
    pieces = programs.derivatives(loss)
    made = {
        name: programs.build(pieces[name], params, params, batch)
        for name in (timing.VALUE, timing.FORWARD, timing.VALUE_AND_GRAD)
    }
    made[rnn_report.STEP] = programs.build(trainer.step, trainer.start(params), batch)
    return made


def loss_of(cell: Any, scan: candidates.Scan) -> programs.Loss:
    """The loss of a cell's model through a scan, as a function of `(params, batch)`."""
    return functools.partial(bitstream.loss, cell, scan)


def check_gradients(
    made: dict[str, dict[str, programs.Program]],
    params: Any,
    batch: bitstream.Batch,
    terms: int,
) -> tuple[float, float]:
    """The tolerance of the gradients, and how far apart they are."""
    plain = made[rnn_report.BASELINE][timing.VALUE_AND_GRAD]
    ours = made[rnn_report.OURS][timing.VALUE_AND_GRAD]
    wanted, up = plain.call(), programs.one_ulp_up(params)
    allowed = programs.tolerance(wanted, plain.run(up, up, batch), terms)
    return allowed, programs.check_equal(wanted, ours.call(), allowed, "value_and_grad")


def race_sides(
    made: dict[str, dict[str, programs.Program]], options: argparse.Namespace
) -> dict[str, Any]:
    """Every phase of both sides, timed in interleaved rounds."""
    lanes = {
        side: {name: program.call for name, program in own.items()} for side, own in made.items()
    }
    outcome = timing.race(
        lanes[rnn_report.BASELINE],
        {rnn_report.OURS: lanes[rnn_report.OURS]},
        rounds=options.rounds,
        min_rounds=min(options.min_rounds, options.rounds),
        budget=options.budget_seconds,
    )
    return {phase: outcome.compare(rnn_report.OURS, phase).to_json() for phase in rnn_report.PHASES}


def choice_of(cell: Any, params: Any, batch: bitstream.Batch, solver: str) -> str:
    """What the scan of the batch is planned to be solved by."""
    carry = cell.initial_carry(
        (batch.inputs.shape[1],), params["head"].shape[0], batch.inputs.dtype
    )
    step = functools.partial(cell, params["cell"])
    plan = parscan_bp.explain(step, carry, batch.inputs, solver=candidates.SOLVERS[solver])
    return str(plan.choice)
