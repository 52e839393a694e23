"""`Pipeline`: step by step the simulator's numbers; checkpoints in mid-flight; what it reports."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import networks
import numpy as np
import optax
import pytest
from networks import cross_entropy, data, net, same_bits
from schedule_cases import CASES

from parscan_bp import pipeline
from parscan_bp.pipeline import checkpoint
from parscan_bp.pipeline.pipeline_report import modelled_bubble

SGD = networks.sgd(0.1, momentum=0.9)
NAMES = ("DSP(2,0,1,0;7,4,3,0)", "FeaturesReplay", "OneFOneB", "PipeDream2BW", "ZeroBubble, H2")
SOME = ("DSP(2,0,1,0;7,4,3,0)", "PipeDream2BW")
EACH = pytest.mark.parametrize(
    "case",
    [
        pytest.param(CASES[name], id=name, marks=[] if name in SOME else [pytest.mark.slow])
        for name in NAMES
    ],
)


def _pipeline(case, **new):
    """One layer in a block, so that keys and rounding are those of `simulate`."""
    functions, params = net(case.blocks)
    options = {
        "split": (1,) * case.blocks,
        "schedule": case.schedule,
        "optimiser": SGD,
        "loss": cross_entropy,
    } | new
    return pipeline.Pipeline(functions, params, **options)


def _simulated(case, batches):
    functions, params = net(case.blocks)
    return pipeline.run(functions, case.schedule, SGD, cross_entropy, params, batches)


@EACH
def test_fed_batch_by_batch_it_is_the_simulator(case):
    batches = data(case.schedule.on_the_way(case.blocks) + 9)
    wanted, made = _simulated(case, batches), _pipeline(case)
    losses = [made.step(batch) for batch in batches]
    ahead = case.schedule.on_the_way(case.blocks)
    assert losses[:ahead] == [None] * ahead
    rest = made.finish()
    assert same_bits(jnp.concatenate([jnp.stack(losses[ahead:]), rest]), wanted.losses)
    assert same_bits(made.params, wanted.params)
    made.close()


class _ByNumber:
    """Python's older protocol of what a loop goes over."""

    def __init__(self, items):
        self._items = items

    def __getitem__(self, n):
        return self._items[n]


def test_it_goes_on_after_it_was_emptied():
    case = CASES["DSP(1,1,0;4,2,0)"]
    made, batches = _pipeline(case), data(8)
    first = made.fit(batches)
    middle = made.params
    second = made.fit(_ByNumber(batches))
    assert first.shape == second.shape == (8,) and made.batches == 16
    functions, _ = net(3)
    states = [run.optimiser_state for run in made._workers.runs]
    assert not same_bits(middle, made.params) and len(states) == 3
    half = _simulated(case, batches)
    again = pipeline.run(
        functions,
        case.schedule,
        SGD,
        cross_entropy,
        half.params,
        batches,
        optimiser_states=half.optimiser_states,
    )
    assert same_bits(made.params, again.params) and same_bits(second, again.losses)


@EACH
def test_stopped_in_mid_flight_and_resumed_it_is_the_same(case, tmp_path):
    batches = data(case.schedule.on_the_way(case.blocks) + 12)
    wanted = _simulated(case, batches)
    path = tmp_path / "flight"
    stop = case.schedule.on_the_way(case.blocks) + 3
    first = _pipeline(case)
    for batch in batches[:stop]:
        first.step(batch)
    first.save(path)
    first.close()
    second = _pipeline(case)
    second.restore(path)
    assert second.batches == stop
    losses = second.fit(batches[second.batches :])
    assert same_bits(second.params, wanted.params)
    assert same_bits(losses, wanted.losses[-len(losses) :])


def test_keys_and_states_are_resumed_too(tmp_path):
    def noisy(params, state, x, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)
        low = (0.9 * state["mean"] + 0.1 * x.mean(0).astype(jnp.bfloat16)).astype(jnp.bfloat16)
        own = {"mean": low, "key": jax.random.fold_in(state["key"], 1)}
        return params * x * mask + jax.random.normal(state["key"], ()), own

    states = [{"mean": jnp.zeros(4, jnp.bfloat16), "key": jax.random.key(k)} for k in range(3)]

    def start():
        return pipeline.Pipeline(
            [pipeline.Block(noisy)] * 3,
            [jnp.ones(4)] * 3,
            states,
            split=(1, 1, 1),
            schedule=pipeline.PipeDream(),
            optimiser=networks.adam(0.01),
            loss=cross_entropy,
            key=jax.random.key(5),
        )

    batches = data(12)
    whole = start()
    whole.fit(batches)
    first = start()
    for batch in batches[:7]:
        first.step(batch)
    first.save(tmp_path / "flight")
    second = start()
    second.restore(tmp_path / "flight")
    second.fit(batches[7:])
    assert same_bits(second.params, whole.params)
    data_of = lambda tree: [jax.random.key_data(own["key"]) for own in tree]  # noqa: E731
    assert same_bits(data_of(second.states), data_of(whole.states))


KILLED = """
import os, signal, sys
sys.path.insert(0, "tests/pipeline")
from test_pipeline import CASES, data
import test_pipeline
path = sys.argv[1]
own = test_pipeline._pipeline(CASES["DSP(2,2,0;6,3,0)"])
for batch in data(24):
    own.step(batch)
    if own.batches % 5 == 0:
        own.save(path)
    if own.batches == 13:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_killed_process_it_is_the_same(tmp_path):
    path, root = tmp_path / "flight", pathlib.Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=env, cwd=root)
    assert ended.returncode == -signal.SIGKILL
    case = CASES["DSP(2,2,0;6,3,0)"]
    resumed = _pipeline(case)
    resumed.restore(path)
    assert resumed.batches == 10
    resumed.fit(data(24)[10:])
    assert same_bits(resumed.params, _simulated(case, data(24)).params)


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path):
    case = CASES["DSP(1,1,0;4,2,0)"]
    own, path = _pipeline(case), tmp_path / "flight"
    with pytest.raises(ValueError, match="no batch has entered"):
        own.save(path)
    own.step(data(1)[0])
    own.save(path)
    with pytest.raises(ValueError, match="batches have entered; a new Pipeline"):
        own.restore(path)
    with pytest.raises(ValueError, match=r"is of DSP\(1,1,0;4,2,0\) with 3 layers"):
        _pipeline(CASES["GPipe"]).restore(path)
    options = {"split": (1,) * 3, "schedule": case.schedule, "optimiser": SGD}
    scales = lambda w: pipeline.Pipeline(  # noqa: E731
        [lambda w, x: w * x] * 3, [w] * 3, loss=cross_entropy, **options
    )
    narrow, path = scales(jnp.ones(())), tmp_path / "scales"
    narrow.step(data(1)[0])
    narrow.save(path)
    with pytest.raises(ValueError, match=r"path: the weights of block 0 .* those of this pipeline"):
        scales(jnp.ones(4)).restore(path)
    (tmp_path / "other").write_text("no")
    with pytest.raises(ValueError, match="is no checkpoint of a pipeline"):
        _pipeline(case).restore(tmp_path / "other")


def test_the_structure_of_a_batch_can_be_written():
    batch = (
        {"a": np.ones((2, 3), np.float32), "b": [np.arange(2, dtype=np.int32), None]},
        (np.float32(1),),
    )
    made = checkpoint.from_skeleton(json.loads(json.dumps(checkpoint.skeleton("batch", batch))))
    assert jax.tree.structure(made) == jax.tree.structure(batch)
    pairs = zip(jax.tree.leaves(made), jax.tree.leaves(batch), strict=True)
    assert all(a.shape == np.shape(b) and a.dtype == b.dtype for a, b in pairs)
    with pytest.raises(TypeError, match="batch: got"):
        checkpoint.skeleton("batch", {1: np.ones(2)})


def test_what_it_measures_decides_the_split_and_is_reported():
    functions, params = net(4)
    schedule = pipeline.DSP((1, 1, 0), (4, 2, 0))
    own = pipeline.Pipeline(functions, params, schedule=schedule, optimiser=SGD, loss=cross_entropy)
    assert own.split is None
    with pytest.raises(ValueError, match="report: no batch has left"):
        own.report()
    own.fit(data(12))
    assert sum(own.split) == 4 and len(own.split) == 3
    report = own.report()
    assert report.batches == 12 and 0 <= report.bubble < 1 and 0 <= report.modelled < 1
    assert [block.layers for block in report.blocks] == list(own.split)
    assert all(
        block.seconds > 0 and block.bytes > 0 and 0 < block.busy < 1 for block in report.blocks
    )
    assert [block.held for block in report.blocks] == list(schedule.held(3))
    assert "DSP(1,1,0;4,2,0): 12 batches" in str(report) and "4, 0" in str(report)


@pytest.mark.parametrize(
    ("new", "error", "words"),
    [
        ({"split": (1, 1)}, ValueError, r"blocks: got 2; DSP\(1,1,0;4,2,0\) is for 3"),
        ({"split": (1, 1, 2)}, ValueError, r"split: got \(1, 1, 2\).* for 3 layers"),
        ({"split": "all"}, TypeError, "split: got 'all'"),
        ({"schedule": None}, TypeError, "schedule: got None"),
        ({"devices": []}, ValueError, "devices: got"),
    ],
)
def test_mistakes_are_told(new, error, words):
    with pytest.raises(error, match=words):
        _pipeline(CASES["DSP(1,1,0;4,2,0)"], **new)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (1, r"schedule: DSP\(1,1,0;4,2,0\) is for 3 blocks, and the model has 1 layer; at least"),
        (0, "layers: got none; at least one for each block"),
    ],
)
def test_fewer_layers_than_blocks_are_named(layers, words):
    with pytest.raises(ValueError, match=words):
        pipeline.Pipeline(
            [lambda w, x: w * x] * layers,
            [jnp.ones(())] * layers,
            schedule=pipeline.DSP((1, 1, 0), (4, 2, 0)),
            optimiser=SGD,
            loss=cross_entropy,
        )


@pytest.mark.parametrize("batches", [3, "batches", {"x": 1}])
def test_batches_that_cannot_be_gone_through_are_named(batches):
    with pytest.raises(TypeError, match=r"batches: got .*to pairs \(x, labels\), is wanted"):
        _pipeline(CASES["PipeDream"]).fit(batches)


def test_the_optimiser_has_to_be_separable_where_blocks_are_updated_from_different_batches():
    clipped = optax.chain(optax.clip_by_global_norm(1.0), SGD)
    own = _pipeline(CASES["PipeDream"], optimiser=clipped)
    with pytest.raises(NotImplementedError, match="global norm"):
        own.step(data(1)[0])


@pytest.mark.parametrize("name", CASES)
def test_of_the_models_own_spans_the_bubble_is_the_models(name):
    """Passes of F = 1 and B = 2 give the bubble of such passes, whatever the schedule."""
    case = CASES[name]
    schedule, blocks = case.schedule, case.blocks
    table = schedule.table(blocks, schedule.on_the_way(blocks) + 3)
    merged = {}
    for span in pipeline.timeline(table):  # threads linearise again within the backward pass
        before = merged.get(span.task, 0.0)
        merged[span.task] = before + span.stop - span.start
    spans = [pipeline.Span(task, 0.0, seconds) for task, seconds in merged.items()]
    work = sum(3.0 + (not keep) for keep in schedule.keeps(blocks))
    wanted = 1 - work / (blocks * pipeline.time_per_batch(schedule, blocks, batches=8))
    assert np.isclose(modelled_bubble(schedule, blocks, spans), wanted)


def test_whoever_is_stopped_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path, entries = tmp_path / "flight", [("weights", [0, 0], [np.arange(3)])]
    checkpoint.write(path, {"batches": 1}, entries)

    def stopped(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.np, "savez", stopped)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(path, {"batches": 2}, entries)
    about, read = checkpoint.read(path)
    assert about["batches"] == 1 and (read[0][2][0] == np.arange(3)).all()
