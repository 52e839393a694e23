"""Remedies of late blocks: every executor against a loop over batches in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import late_loop
import networks
import numpy as np
import pytest
from alike import assert_same, cross_entropy, data, params_of, residual

import parscan_bp as pb
from parscan_bp import pipeline
from parscan_bp.trees import nbytes

RATE, MOMENTUM, BLOCKS, BATCHES = 0.1, 0.9, 3, 14
DSP = pipeline.DSP((1, 1, 0), (4, 2, 0))
AGES = {
    "DSP": (DSP, [(4, 0), (2, 0), (0, 0)]),
    "PipeDream": (pipeline.PipeDream(), [(2, 2), (1, 1), (0, 0)]),
    "FeaturesReplay": (pipeline.FeaturesReplay(), [(2, 0), (1, 0), (0, 0)]),
    "2BW": (pipeline.PipeDream2BW(4), [(1, 1)] * 3),
}
GIVEN = {
    "compensation": ([pipeline.DelayCompensation(0.8)], {"compensation": (0.8, None)}),
    "adaptive": ([pipeline.DelayCompensation(0.8, 0.9)], {"compensation": (0.8, 0.9)}),
    "rate": ([pipeline.LearningRateByStaleness()], {"rate": (1.0, None)}),
    "feedback": ([pipeline.ErrorFeedback(0.5)], {"feedback": 0.5}),
    "prediction": ([pipeline.WeightPrediction()], {"prediction": True}),
    "all": (
        [
            pipeline.DelayCompensation(0.8, 0.9),
            pipeline.LearningRateByStaleness(0.5, anneal=6),
            pipeline.ErrorFeedback(0.5),
            pipeline.WeightPrediction(),
        ],
        {"compensation": (0.8, 0.9), "rate": (0.5, 6), "feedback": 0.5, "prediction": True},
    ),
}


def as_floats(tree):
    """In the precision of the run; labels as they are."""
    return jax.tree.map(lambda a: jnp.asarray(a, float) if a.dtype.kind == "f" else a, tree)


def run_of(schedule, remedies, executor=None, batches=None, **more):
    """Of residual blocks."""
    given = {"params": as_floats(params_of(BLOCKS)), **more}
    return pipeline.run(
        [residual] * BLOCKS,
        schedule,
        networks.sgd(RATE, MOMENTUM),
        cross_entropy,
        given.pop("params"),
        as_floats(data(BATCHES)) if batches is None else batches,
        **given,
        remedies=remedies,
        executor=executor or pipeline.Simulated(),
    )


def assert_is_loop(params, losses, wanted):
    """Up to rounding, and how much that is."""
    tolerance = 1e-11 if jax.config.jax_enable_x64 else 1e-4
    np.testing.assert_allclose(losses, wanted[1], rtol=tolerance, atol=tolerance)
    for got, own in zip(jax.tree.leaves(params), jax.tree.leaves(wanted[0]), strict=True):
        np.testing.assert_allclose(got, own, rtol=tolerance, atol=tolerance)
    return tolerance


def check_loop(name, remedies, executors):
    """All executors have the same bits, and the numbers of the loop; without a remedy others."""
    schedule, ages = AGES[name]
    ours, theirs = GIVEN[remedies]
    made = run_of(schedule, ours)
    wanted, losses = late_loop.train(params_of(BLOCKS), ages, data(BATCHES), theirs, RATE, MOMENTUM)
    without, _ = late_loop.train(params_of(BLOCKS), ages, data(BATCHES), {}, RATE, MOMENTUM)
    tolerance = assert_is_loop(made.params, made.losses, (wanted, losses))
    late = [k for k, (forward, _) in enumerate(ages) if forward]
    for k in late:
        assert networks.largest_difference(wanted[k], without[k]) > 100 * tolerance
    for executor in executors:
        assert_same(run_of(schedule, ours, executor), made)


@pytest.mark.parametrize("remedies", ["compensation", "prediction", "all"])
def test_dsp_is_the_loop_in_every_executor_of_a_process(run_on_devices, remedies):
    run_on_devices(CHECK + f"check('DSP', {remedies!r})", 3, x64=True, optimised=True)


@pytest.mark.slow
@pytest.mark.parametrize("remedies", ["adaptive", "rate", "feedback"])
def test_so_it_is_with_the_other_remedies(run_on_devices, remedies):
    run_on_devices(CHECK + f"check('DSP', {remedies!r})", 3, x64=True, optimised=True)


CHECK = """
import sys
sys.path.insert(0, "tests/pipeline")
import test_remedied_blocks as tests
from alike import line
from parscan_bp import pipeline

def check(name, remedies):
    executors = pipeline.Threads(), pipeline.Spmd(line(3))
    tests.check_loop(name, remedies, executors)

"""


@pytest.mark.parametrize("name", ["PipeDream", "FeaturesReplay", "2BW"])
def test_other_schedules_are_the_loop(name):
    check_loop(name, "all", [pipeline.Threads()])


def loop_in_two(first):
    """DSP with all remedies, emptied after some batches."""
    given = params_of(BLOCKS), AGES["DSP"][1], data(BATCHES), GIVEN["all"][1]
    return late_loop.train(*given, RATE, MOMENTUM, emptied=[first])


def test_a_run_goes_on_with_what_remedies_keep():
    batches, ours = as_floats(data(BATCHES)), GIVEN["all"][0]
    first = run_of(DSP, ours, batches=batches[:6])
    rest = {"params": first.params, "optimiser_states": first.optimiser_states}
    second = run_of(DSP, ours, batches=batches[6:], **rest)
    losses = jnp.concatenate([first.losses, second.losses])
    assert_is_loop(second.params, losses, loop_in_two(6))
    late, _, in_time = first.optimiser_states
    assert len(late.remedies) == 4
    assert jax.tree.structure(in_time) == jax.tree.structure(late.inner)


def pipeline_of(remedies):
    return pipeline.Pipeline(
        [residual] * BLOCKS,
        as_floats(params_of(BLOCKS)),
        split=(1,) * BLOCKS,
        schedule=DSP,
        optimiser=networks.sgd(RATE, MOMENTUM),
        loss=cross_entropy,
        remedies=remedies,
    )


def test_a_pipeline_is_saved_in_mid_flight_with_what_remedies_keep(tmp_path):
    batches, path = as_floats(data(BATCHES)), tmp_path / "flight"
    first = pipeline_of(GIVEN["all"][0])
    begun = first.fit(batches[:6])
    for batch in batches[6:11]:
        first.step(batch)
    first.save(path)
    second = pipeline_of(GIVEN["all"][0])
    second.restore(path)
    rest = second.fit(batches[second.batches :])
    wanted = loop_in_two(6)
    assert_is_loop(second.params, np.concatenate([begun, wanted[1][6:7], rest]), wanted)
    with pytest.raises(ValueError, match=r"path: .* with the remedies .*; this pipeline has \[\]"):
        pipeline_of([]).restore(path)


@pytest.mark.slow
def test_weights_that_are_kept_twice_are_counted_once():
    """After six batches the first block keeps versions 0, 0, 0, 1 for four, the second 2, 3."""
    held = []
    for remedies in ([], [pipeline.DelayCompensation(0.8)]):
        own = pipeline_of(remedies)
        for batch in as_floats(data(6)):
            own.step(batch)
        held.append([block.bytes for block in own.report().blocks])
    weights = nbytes(own.params[0])
    assert [b - a for a, b in zip(*held, strict=True)] == [2 * weights, 2 * weights, 0]


@pytest.mark.slow
def test_processes_have_the_simulators_bits():
    found = pb.parallel.launch("tests.pipeline.process_targets:remedied", 2)
    assert found == [{"same": True, "other": True}] * 2


def test_blocks_in_time_are_left_alone():
    ours = GIVEN["all"][0]
    assert_same(run_of(pipeline.OneFOneB(2), ours), run_of(pipeline.OneFOneB(2), []))


@dataclasses.dataclass(frozen=True)
class LateAgain(pipeline.Schedule):
    """PipeDream, but blocks linearise themselves again, with the weights of the forward pass."""

    def tasks(self, blocks, batches):
        return pipeline.PipeDream().tasks(blocks, batches)

    def keeps(self, blocks):
        return (False,) * blocks

    def on_the_way(self, blocks):
        return blocks - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Unhashable(pipeline.Remedy):
    """A remedy without a hash."""

    __hash__ = None


@pytest.mark.parametrize(
    ("schedule", "remedies", "error", "words"),
    [
        (DSP, [3], TypeError, "remedies: got 3, of type int; a Remedy such as"),
        (DSP, 3, TypeError, "remedies: got 3, of type int; a sequence of them is wanted"),
        (DSP, [Unhashable()], TypeError, "remedies: got .*no hash; such that have are wanted"),
        (
            LateAgain(),
            [pipeline.WeightPrediction()],
            NotImplementedError,
            "remedies: LateAgain linearises block 0 again, 2 updates late; predictions are made",
        ),
    ],
)
def test_mistakes_of_remedies(schedule, remedies, error, words):
    with pytest.raises(error, match=words):
        run_of(schedule, remedies)


def test_one_that_predicts_nothing_goes_with_blocks_that_linearise_again_late():
    ours = GIVEN["adaptive"][0]
    made, wanted = (run_of(each, ours) for each in (LateAgain(), pipeline.PipeDream()))
    assert networks.largest_difference(made.params, wanted.params) < 1e-5
