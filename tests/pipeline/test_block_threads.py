"""A thread for each block: the simulator's bits, queues that absorb a straggler, failures."""

import itertools
import threading
import time

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from networks import cross_entropy, data, net, placed, same_bits
from schedule_cases import CASES

import parscan_bp as pb
from parscan_bp import layers, pipeline
from parscan_bp.pipeline.executors.stream import Stream
from parscan_bp.pipeline.schedules.table import due_of

EACH = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
SOME = ("DSP(1,1,0;4,2,0)", "DelayedGradients", "PipeDream2BW")
SGD = networks.sgd(0.1, momentum=0.9)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[] if name in SOME else [pytest.mark.slow])
        for name, case in CASES.items()
    ],
)
def test_every_schedule_has_the_simulators_bits(case):
    functions, params = net(case.blocks)
    batches = data(case.schedule.on_the_way(case.blocks) + 6)
    given = (functions, case.schedule, SGD, cross_entropy, params, batches)
    assert same_bits(pipeline.run(*given, executor=pipeline.Threads()), pipeline.run(*given))


MANY = """
import sys
sys.path.insert(0, "tests/pipeline")
import jax, optax
from networks import cross_entropy, data, net, placed, same_bits
from schedule_cases import PAPER
from parscan_bp import pipeline

def check(schedule, blocks):
    functions, params = net(blocks)
    given = (functions, schedule, optax.adam(0.01), cross_entropy, params, data(41))
    spans = []
    made = pipeline.run(*given, executor=pipeline.Threads(spans=spans))
    assert schedule.table(blocks, 41).ticks > 40
    assert same_bits(made, pipeline.run(*given))
    places = [jax.tree.leaves(own)[0].device.id for own in made.params]
    assert places == [*range(blocks)]
    assert {span.task for span in spans} == set(schedule.table(blocks, 41).tasks)

"""


@pytest.mark.parametrize(
    ("schedule", "blocks"),
    [
        pytest.param("pipeline.DSP((1, 0), (2, 0))", 2, marks=pytest.mark.slow),
        ('PAPER["DSP(2,2,0;6,3,0)"]', 3),
        pytest.param('PAPER["DSP(1,1,1,0;6,4,2,0)"]', 4, marks=pytest.mark.slow),
        pytest.param("pipeline.FeaturesReplay()", 3, marks=pytest.mark.slow),
    ],
)
def test_each_block_is_on_its_device_with_the_simulators_bits_after_40_ticks(
    run_on_devices, schedule, blocks
):
    run_on_devices(MANY + f"check({schedule}, {blocks})", 4, optimised=True)


@EACH
@pytest.mark.parametrize("entered", [1, 2, 5, 41])
def test_a_stream_is_the_table_of_any_number_of_batches(case, entered):
    stream, blocks = Stream(case.schedule, case.blocks), case.blocks
    due = [each for n in range(entered) for each in stream.step(n)]
    long = case.schedule.table(blocks, entered + 20)
    assert due == due_of(long.tasks)[: len(due)]
    done = [task for task, _ in (*due, *stream.rest(entered))]
    exact = case.schedule.tasks(blocks, entered)
    what = lambda task: (task.kind, task.batch, task.part, task.version)  # noqa: E731
    for k in range(blocks):
        own = [what(task) for task in done if task.block == k]
        assert own == [what(task) for task in exact if task.block == k]


def test_states_keys_and_layers_are_those_of_the_simulator():
    """Batch norm and dropout by hand, and a block whose backward pass is a solver's."""

    def noisy(params, state, x, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)
        return (x * params * mask) - state, 0.9 * state + 0.1 * x.mean(0)

    stack = pipeline.as_block([layers.Linear(3), jnp.tanh, layers.Linear(3)])
    rng = np.random.default_rng(0)
    affine = lambda a: {"kernel": rng.normal(size=(a, 3)), "bias": np.zeros(3)}  # noqa: E731
    weights = jax.tree.map(jnp.float32, [affine(4), None, affine(3)])
    given = (
        [pipeline.Block(noisy), stack],
        pipeline.PipeDream2BW(2),
        SGD,
        cross_entropy,
        placed([jnp.ones(4), weights]),
        data(6),
    )
    options = placed({"states": [jnp.zeros(4), ()], "key": jax.random.key(7)})
    assert same_bits(
        pipeline.run(*given, **options, executor=pipeline.Threads()),
        pipeline.run(*given, **options),
    )


def test_a_scan_in_a_block_and_the_pipeline_between_blocks():
    """The backward pass of either block is that of the solver that it names."""

    def recurrent(w, x):
        step = lambda h, x: (jnp.tanh(h @ w + x), None)  # noqa: E731
        xs = jnp.broadcast_to(x, (12, *x.shape))
        return pb.scan(step, jnp.zeros_like(x), xs, solver=pb.Chunked(chunks=3))[0]

    stack = [layers.Linear(3), jnp.tanh, layers.Linear(3)]

    def layered(params, x):
        return pb.chain(stack, params, x, solver=pb.Blelloch())

    rng = np.random.default_rng(0)
    affine = lambda a: {"kernel": rng.normal(size=(a, 3)), "bias": np.zeros(3)}  # noqa: E731
    params = jax.tree.map(jnp.float32, [rng.normal(size=(4, 4)) / 4, [affine(4), None, affine(3)]])
    batches = data(6)

    def plain(params, batch):
        def step(h, x):
            return jnp.tanh(h @ params[0] + x), None

        x, (a, _, b) = jnp.broadcast_to(batch[0], (12, *batch[0].shape)), params[1]
        x = jax.lax.scan(step, jnp.zeros_like(batch[0]), x)[0]
        x = jnp.tanh(x @ a["kernel"] + a["bias"]) @ b["kernel"] + b["bias"]
        return cross_entropy(x, batch[1])

    sgd = networks.sgd(0.1)
    made = pipeline.run(
        [recurrent, layered],
        pipeline.BackPropagation(),
        sgd,
        cross_entropy,
        params,
        batches,
        executor=pipeline.Threads(),
    )
    for batch in batches:
        gradient = jax.grad(plain)(params, batch)
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)
    assert networks.largest_difference(made.params, params) < 1e-6


def _seconds(schedule, slow=None, blocks=3, batches=14):
    """Of the whole run, when passes take hundredths of seconds."""
    functions, params = net(blocks)
    spans = []
    pipeline.run(
        functions,
        schedule,
        SGD,
        cross_entropy,
        params,
        data(batches),
        executor=pipeline.Threads(costs=pipeline.Costs(0.004, 0.008), slow=slow, spans=spans),
    )
    return spans


def test_a_block_sleeps_as_long_as_it_is_to_be_busy():
    schedule = CASES["DSP(1,1,0;4,2,0)"].schedule
    table = schedule.table(3, 14)
    slow = np.ones((table.ticks, 3))
    slow[7, 1] = 5.0
    spans = _seconds(schedule, slow)
    for span in spans:
        again = not table.keeps[span.task.block]
        least = {"forward": 0.004, "backward": 0.012 if again else 0.008, "update": 0.0}
        factor = slow[span.task.tick, span.task.block]
        assert span.stop - span.start >= factor * least[span.task.kind] - 1e-4, span
    by_block = [[s for s in spans if s.task.block == k] for k in range(3)]
    for own in by_block:
        assert all(a.stop <= b.start + 1e-4 for a, b in itertools.pairwise(own))


def test_in_lockstep_nobody_begins_a_tick_early():
    spans = _seconds(pipeline.FeaturesReplay())
    ends = {}
    for span in spans:
        ends[span.task.tick] = max(ends.get(span.task.tick, 0.0), span.stop)
    for span in spans:
        assert span.start >= ends.get(span.task.tick - 1, 0.0)


def test_without_lockstep_nobody_waits_for_one_who_is_slow_further_up():
    """While the last block sleeps the first goes on for as long as its queues last."""
    schedule = CASES["DSP(3,3,0;10,5,0)"].schedule
    slow = np.ones((schedule.table(3, 14).ticks, 3))
    slow[6, 2] = 250.0  # long beside what a crowded machine delays
    spans = _seconds(schedule, slow)
    asleep = next(s for s in spans if s.task.tick == 6 and s.task.block == 2)
    during = {s.task.tick for s in spans if asleep.start < s.start < asleep.stop}
    assert max(during) >= 8


def test_a_failure_in_a_thread_is_raised_and_no_thread_is_left():
    def fails(w, x):
        def stop(x):
            raise ArithmeticError("too hot")

        return w * jax.pure_callback(stop, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    before = threading.active_count()
    with pytest.raises(Exception, match="too hot") as told:
        pipeline.run(
            [lambda w, x: x * w, fails],
            pipeline.GPipe(1),
            SGD,
            lambda y, labels: y.mean(),
            [jnp.ones(())] * 2,
            data(3),
            executor=pipeline.Threads(),
        )
    assert "in the thread of block 1" in "".join(told.value.__notes__)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def _run(**new):
    functions, params = net(3)
    where = {name: new.pop(name) for name in ("devices", "costs", "slow") if name in new}
    options = {
        "blocks": functions,
        "schedule": pipeline.BackPropagation(),
        "optimiser": SGD,
        "loss": cross_entropy,
        "params": params,
        "batches": data(3),
    } | new
    return pipeline.run(**options, executor=pipeline.Threads(**where))


@pytest.mark.parametrize(
    ("new", "error", "words"),
    [
        ({"schedule": "GPipe"}, TypeError, "schedule: got 'GPipe'"),
        ({"devices": "cpu"}, TypeError, "devices: got 'cpu'"),
        ({"devices": []}, ValueError, "devices: got"),
        ({"devices": [1]}, ValueError, "at least one jax.Device"),
        ({"costs": pipeline.Costs(transfer=1.0)}, ValueError, "costs: got a transfer of 1.0"),
        ({"slow": np.ones((2, 3))}, ValueError, r"slow: got shape \(2, 3\)"),
        ({"blocks": [3]}, TypeError, r"blocks\[0\]"),
        ({"params": networks.net(2)[1]}, ValueError, "params: got 2 for 3 blocks"),
    ],
)
def test_mistakes_are_told(new, error, words):
    with pytest.raises(error, match=words):
        _run(**new)


def test_a_smaller_last_batch_is_run_as_by_the_simulator():
    batches = [*data(2), *data(1, seed=2, rows=3)]
    functions, params = net(3)
    given = (functions, pipeline.BackPropagation(), SGD, cross_entropy, params, batches)
    for one, other in zip(
        jax.tree.leaves(pipeline.run(*given, executor=pipeline.Threads())[:2]),
        jax.tree.leaves(pipeline.run(*given)[:2]),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
