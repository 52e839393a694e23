"""One program for all stages: the simulator's bits, two permutations a tick, what it refuses."""

import jax
import jax.numpy as jnp
import networks
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from schedule_cases import CASES

from parscan_bp import pipeline
from parscan_bp.pipeline.executors.instructions import instructions
from parscan_bp.pipeline.executors.slots import allocate

SEVERAL_HOPS = (
    "DSP(0,0,0;0,0,0)",
    "DSP(2,0,1,0;7,4,3,0)",
    "DelayedGradients",
    "FeaturesReplay",
)
RUN = """
import sys
sys.path.insert(0, "tests/pipeline")
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh
import alike
from alike import assert_close, assert_same, batches_of, cross_entropy, data, line, params_of
from schedule_cases import CASES, PAPER
from parscan_bp import pipeline
from parscan_bp.parallel import Collectives, collective_stats

def check(schedule, blocks, optimiser, block=alike.residual, params=None, stages=None, **rest):
    params = params_of(blocks) if params is None else params
    batches = batches_of(schedule, blocks)
    given = (schedule, optimiser, cross_entropy, params, batches)
    given = ([block] * blocks, *given)
    made = pipeline.run(*given, **rest, executor=pipeline.Spmd(line(stages or blocks)))
    wanted = pipeline.run(*given, **rest)
    assert_same(made, wanted)
    assert jnp.isfinite(made.losses).all() and made.losses.shape == (len(batches),)

"""


@pytest.mark.parametrize(
    ("schedule", "blocks", "optimiser"),
    [
        pytest.param("alike.TWO", 2, "optax.adam(1e-2)", marks=pytest.mark.slow),
        ('PAPER["DSP(2,2,0;6,3,0)"]', 3, "optax.sgd(0.1, momentum=0.9)"),
        pytest.param('PAPER["DSP(1,1,1,0;6,4,2,0)"]', 4, "optax.sgd(0.1)", marks=pytest.mark.slow),
    ],
)
def test_dsp_has_the_simulators_bits_after_40_ticks(run_on_devices, schedule, blocks, optimiser):
    run_on_devices(RUN + f"check({schedule}, {blocks}, {optimiser})", 4, optimised=True)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("GPipe", marks=pytest.mark.slow),
        pytest.param("OneFOneB", marks=pytest.mark.slow),
        "PipeDream2BW",
        pytest.param("ZeroBubble, H2", marks=pytest.mark.slow),
    ],
)
def test_parts_are_summed_as_the_simulator_sums_them(run_on_devices, name):
    run_on_devices(RUN + f"check(CASES[{name!r}].schedule, 3, optax.adamw(1e-2))", 4)


@pytest.mark.parametrize(
    ("microbatches", "stages", "blocks", "optimiser"),
    [
        (2, 2, 4, "optax.sgd(0.1, momentum=0.9)"),
        pytest.param(4, 2, 6, "optax.adamw(1e-2)", marks=pytest.mark.slow),
        pytest.param(4, 4, 8, "optax.sgd(0.1)", marks=pytest.mark.slow),
        pytest.param(2, 1, 2, "optax.adam(1e-2)", marks=pytest.mark.slow),
        pytest.param(
            2,
            2,
            4,
            "optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_several_blocks_a_device_have_the_simulators_bits(
    run_on_devices, microbatches, stages, blocks, optimiser
):
    schedule = f"pipeline.InterleavedOneFOneB({microbatches}, devices={stages})"
    run_on_devices(RUN + f"check({schedule}, {blocks}, {optimiser}, stages={stages})", 4)


@pytest.mark.slow
def test_other_schedules_run_with_several_blocks_a_device_if_each_has_one_pass_a_tick(
    run_on_devices,
):
    program = """
check(pipeline.BackPropagation(), 4, optax.adam(1e-2), stages=2)
check(pipeline.GPipe(2), 4, optax.adam(1e-2), stages=2)
"""
    run_on_devices(RUN + program, 4)


def test_several_passes_of_a_device_in_a_tick_are_refused_by_name(run_on_devices):
    table = pipeline.OneFOneB(4).table(blocks=4, batches=1)
    with pytest.raises(NotImplementedError, match=r"schedule: OneFOneB\(microbatches=4\) has seve"):
        instructions(table, 2)
    program = """
try:
    check(pipeline.GPipe(2), 3, optax.sgd(0.1), stages=2)
except ValueError as error:
    assert str(error).startswith("blocks: got 3 for 2 devices along the axis 'stage'"), error
else:
    raise AssertionError
"""
    run_on_devices(RUN + program, 4)


def test_what_has_no_errors_is_refused_by_name(run_on_devices):
    program = """
def refused(kind, said, params, x):
    run = pipeline.Spmd(line(2))
    given = (pipeline.BackPropagation(), optax.sgd(0.1), lambda y, _: jnp.mean(y["x"]))
    try:
        pipeline.run([lambda w, x: {**x, "x": w * x["x"]}] * 2, *given, params, [(x, np.ones(4))],
                     executor=run)
    except kind as error:
        assert str(error).startswith(said), error
    else:
        raise AssertionError(said)

one, floats = jnp.ones(()), {"x": np.ones(4, np.float32)}
refused(ValueError, "batches[0]: a part of the data is {m: int32[4], x: float32[4]}",
        [one, one], {**floats, "m": np.arange(4)})
refused(TypeError, "params[1]: got int32[]", [one, jnp.int32(2)], floats)
refused(ValueError, "params[1]: got float16[], but float32[] in params[0]; the same",
        [one, one.astype(jnp.float16)], floats)
"""
    run_on_devices(RUN + program, 4)


@pytest.mark.slow
def test_every_schedule_of_one_hop_a_tick_has_the_simulators_bits(run_on_devices):
    program = f"""
for name, case in CASES.items():
    if name not in {SEVERAL_HOPS}:
        check(case.schedule, case.blocks, optax.sgd(0.1, momentum=0.9))
"""
    run_on_devices(RUN + program, 4, optimised=True)


@pytest.mark.slow
def test_states_and_random_keys_are_those_of_the_batch(run_on_devices):
    program = """
state = {"mean": jnp.zeros(alike.WIDTH), "passes": jnp.zeros((), jnp.int32)}
block, key = pipeline.Block(alike.noisy), jax.random.key(5)
for schedule in (PAPER["DSP(1,1,0;4,2,0)"], pipeline.GPipe(3)):
    check(schedule, 3, optax.sgd(0.05), block, states=[state] * 3, key=key)
schedule = pipeline.InterleavedOneFOneB(2, devices=2)
check(schedule, 4, optax.sgd(0.05), block, states=[state] * 4, key=key, stages=2)
"""
    run_on_devices(RUN + program, 4)


@pytest.mark.slow
def test_the_backward_pass_of_a_block_is_a_solvers(run_on_devices):
    """Layers of a block go through `parscan_bp.chain`, inside of what runs on each device."""
    program = """
def own(seed):
    w, b, v = params_of(1, seed)[0]
    return [{"kernel": w, "bias": b}, None, {"kernel": v, "bias": b}]
block = pipeline.as_block(alike.STACK)
check(alike.TWO, 2, optax.sgd(0.1), block, [own(k) for k in range(2)])
"""
    run_on_devices(RUN + program, 4)


COUNT = (
    RUN
    + """
def found(schedule, blocks, **options):
    batches = batches_of(schedule, blocks)
    job = pipeline.Job([alike.residual] * blocks, schedule, optax.adam(0.1), cross_entropy,
                       params_of(blocks), batches)
    program = pipeline.Spmd(**options).compiled(job)
    return job.table, collective_stats(program.run.lower(*program.arguments).compile())

sent = 4 * alike.ROWS * alike.WIDTH
"""
)


@pytest.mark.reads_compiled
@pytest.mark.parametrize(
    ("schedule", "stages", "blocks"),
    [
        ('PAPER["DSP(3,3,0;10,5,0)"]', 3, 3),
        pytest.param("pipeline.GPipe(4)", 3, 3, marks=pytest.mark.slow),
        pytest.param("pipeline.OneFOneB(4)", 3, 3, marks=pytest.mark.slow),
        pytest.param("pipeline.InterleavedOneFOneB(3, 3)", 3, 6, marks=pytest.mark.slow),
    ],
)
def test_two_permutations_a_tick_and_nothing_else(run_on_devices, schedule, stages, blocks):
    program = f"""
stages, blocks = {stages}, {blocks}
table, stats = found({schedule}, blocks, mesh=line(stages))
assert stats == {{"collective-permute": Collectives(2 * table.ticks, 2 * table.ticks * sent)}}
"""
    run_on_devices(COUNT + program, 4)


@pytest.mark.reads_compiled
@pytest.mark.slow
def test_gradients_alone_are_summed_over_a_data_axis(run_on_devices):
    program = """
both = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "stage"))
table, stats = found(alike.TWO, 2, mesh=both, data="data")
permutes = stats.pop("collective-permute")
assert permutes == Collectives(2 * table.ticks, table.ticks * sent), permutes
assert set(stats) == {"all-reduce"}, stats
"""
    run_on_devices(COUNT + program, 4)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_rows_are_divided_over_a_data_axis(run_on_devices, x64):
    program = """
both = jax.make_mesh((2, 2), ("data", "stage"))  # of explicit axes
for schedule in (alike.TWO, pipeline.GPipe(2)):
    given = (schedule, optax.adam(1e-2), cross_entropy, params_of(2), batches_of(schedule, 2))
    made = pipeline.run([alike.residual] * 2, *given, executor=pipeline.Spmd(both, data="data"))
    assert_close(made, pipeline.run([alike.residual] * 2, *given), 2e-6)
"""
    run_on_devices(RUN + program, 4, x64=x64)


@pytest.mark.parametrize("name", SEVERAL_HOPS)
def test_several_hops_a_tick_are_refused_by_name(name):
    case = CASES[name]
    table = case.schedule.table(case.blocks, case.schedule.on_the_way(case.blocks) + 3)
    with pytest.raises(NotImplementedError, match=r"needs several hops in a tick") as told:
        instructions(table, case.blocks)
    assert f"schedule: {table.name} " in str(told.value)


class Waiting(pipeline.Schedule):
    """A batch goes up and down, and in a tick of their own come the updates by it."""

    def tasks(self, blocks, batches):
        task, made = pipeline.Task, []
        for n in range(batches):
            up = (2 * blocks + 1) * n
            end = up + 2 * blocks
            made += [task("forward", up + k, k, n, version=n) for k in range(blocks)]
            made += [task("backward", end - 1 - k, k, n, version=n) for k in range(blocks)][::-1]
            made += [task("update", end, k, n, version=n) for k in range(blocks)]
        return made


def test_updates_may_wait(run_on_devices):
    """What they are made of is kept until then."""
    run_on_devices(_waits, 2)


def _waits():
    blocks = [lambda w, x: jnp.tanh(w * x)] * 2
    rest = (optax.sgd(0.5), lambda y, labels: jnp.mean((y - labels) ** 2), [jnp.ones(())] * 2)
    given = (blocks, Waiting(), *rest, [(jnp.ones(4), jnp.full(4, 0.3))] * 4)
    mesh = Mesh(np.array(jax.devices()[:2]), ("stage",))
    made, wanted = pipeline.run(*given, executor=pipeline.Spmd(mesh)), pipeline.run(*given)
    np.testing.assert_array_equal(made.losses, wanted.losses)
    np.testing.assert_array_equal(made.params, wanted.params)
    assert wanted.losses[-1] < 0.2 * wanted.losses[0]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        # Kind and batch, in which tick, with weights of which version.
        ("F0-0-0 B0-1-0 U0-1-0 F1-1-1 B1-2-1 U1-2-1", "updates block 0 in tick 1 and reads the"),
        ("F0-0-0 F1-1-0 B0-2-0 B1-3-0 U0-4-0 U1-5-1", "begins with the gradient of batch 1 at bl"),
    ],
)
def test_updates_between_passes_are_refused_by_name(order, words):
    kinds = {"F": "forward", "B": "backward", "U": "update"}
    tasks = []
    for each in order.split():
        what, tick, version = each.split("-")
        task = pipeline.Task(kinds[what[0]], int(tick), 0, int(what[1]), version=int(version))
        tasks.append(task)
    with pytest.raises(NotImplementedError, match=words) as told:
        instructions(pipeline.Table("Own", 1, 2, 1, (True,), tuple(tasks)), 1)
    assert str(told.value).startswith("schedule: Own ")


def test_rings_have_the_room_that_dsp_states():
    for name, case in CASES.items():
        if not name.startswith("DSP") or name in SEVERAL_HOPS:
            continue
        schedule, blocks = case.schedule, case.blocks
        _, rooms = instructions(schedule.table(blocks, schedule.on_the_way(blocks) + 9), blocks)
        assert rooms.x == (0, *schedule.p[:-1])
        assert rooms.ct == (*schedule.queues[1:], 0)
        assert rooms.kept == tuple(1 + m for m in schedule.m)
        assert rooms.weights == (1,) * blocks


def test_slots_are_as_few_as_can_be_and_never_shared():
    rng = np.random.default_rng(0)
    starts = rng.permutation(40)
    lives = {k: (int(s), int(s + rng.integers(0, 9))) for k, s in enumerate(starts)}
    slots, count = allocate(lives)
    at_once = max(sum(a <= t < max(b, a + 1) for a, b in lives.values()) for t in range(50))
    assert count <= at_once
    for a in lives:
        for b in lives:
            apart = lives[a][1] <= lives[b][0] or lives[b][1] <= lives[a][0]
            assert a == b or apart or slots[a] != slots[b]


def _run(**new):
    where = {"mesh": Mesh(np.array(jax.devices()[:1]), ("stage",))}
    where |= {name: new.pop(name) for name in ("mesh", "axis") if name in new}
    options = {
        "blocks": [lambda w, x: w * x],
        "schedule": pipeline.BackPropagation(),
        "optimiser": optax.sgd(0.1),
        "loss": lambda y, labels: y.mean(),
        "params": [jnp.ones(())],
        "batches": networks.data(2),
    } | new
    return pipeline.run(**options, executor=pipeline.Spmd(**where))


@pytest.mark.parametrize(
    ("new", "error", "words"),
    [
        ({"mesh": "stage"}, TypeError, "mesh: got 'stage'"),
        ({"axis": "stages"}, ValueError, "axis: got 'stages'"),
        ({"schedule": 3}, TypeError, "schedule: got 3"),
        ({"params": [jnp.ones(())] * 2}, ValueError, "params: got 2 for 1 blocks"),
        (
            {"blocks": [lambda w, x: x[:, :2] * w]},
            ValueError,
            r"block: it makes float\d+\[8,2\] of float\d+\[8,4\]",
        ),
        (
            {"batches": [*networks.data(1), *networks.data(1, rows=4)]},
            ValueError,
            r"batches\[1\]: got",
        ),
    ],
)
def test_mistakes_are_told(new, error, words):
    with pytest.raises(error, match=words):
        _run(**new)
