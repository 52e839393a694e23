"""The bench of stale pipelines, at sizes where nothing is learned but all runs."""

import itertools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import __main__ as command
from bench.paper.pipeline import (
    accuracy,
    delays,
    difference,
    dni,
    networks,
    remedies,
    residual,
    speed,
    tasks,
)
from parscan_bp import pipeline


def _run(tmp_path, *options):
    command.main(["pipeline", "--quick", "--out", str(tmp_path), *options])
    return json.loads((tmp_path / "pipeline.json").read_text())["points"]


def test_speed_and_stragglers_stand_beside_the_papers(tmp_path, capsys):
    points = _run(tmp_path, "--only", "speed", "stragglers")
    four = points["speed"]["speedups"]["K=4, transfer 0 F"]
    assert four["FR"] == pytest.approx(12 / 7) and four["BP"] == 1
    assert four["GPipe"] == pytest.approx(12 / 5.125) and four["DSP"] == pytest.approx(3)
    assert four[speed.OVERLAPPED] == pytest.approx(4)
    assert set(speed.TABLE_2) < set(points["stragglers"]["percent"])
    shown = capsys.readouterr().out
    assert "359.2" in shown and "paper: ResNet101, ImageNet, K=4" in shown
    assert (tmp_path / "pipeline_stragglers.png").exists()


@pytest.mark.slow
def test_every_part_runs(tmp_path, capsys):
    points = _run(tmp_path)
    parts = {entry["part"] for entry in points.values()}
    assert parts == {"speed", "stragglers", "difference", "accuracy", "remedies"}
    shown = capsys.readouterr().out
    for schedule in accuracy.SCHEDULES:
        assert schedule in shown
    bp, late = (points[f"digits rate 0.002 {name}"]["runs"] for name in ("BP", "GPipe"))
    np.testing.assert_allclose(bp[0]["losses"], late[0]["losses"], rtol=1e-3)
    assert {p.stem for p in tmp_path.glob("*.png")} == {
        f"pipeline_{name}" for name in ("accuracy", "stragglers", "difference", "remedies")
    }


@pytest.mark.slow
def test_gradients_of_the_same_batch_are_compared(tmp_path):
    """Also where samples lie closer than the queues are long."""
    points = _run(tmp_path, "--only", "difference DSP(2,2,0", "--samples", "1000")
    samples = points["difference DSP(2,2,0;6,3,0)"]["samples"]
    assert [sample["batch"] for sample in samples] == list(range(len(samples)))
    for sample in samples:
        apart, size = (np.array(sample[name]) for name in ("difference", "gradient"))
        # The last block's gradient is not stale, nor is any of the first batch.
        assert apart[2] < 1e-4 * size[2]
        assert sample["batch"] > 0 or (apart < 1e-4 * size).all()
    assert max(sample["difference"][0] / sample["gradient"][0] for sample in samples) > 0.01


def test_a_network_is_the_same_however_it_is_cut():
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
    scores = []
    for blocks in (1, 3, 4):
        network = networks.cut("resnet", blocks, (8, 8, 3), 10, 4)
        params, states = network.init(0)
        assert len(network.blocks) == blocks and all(params)
        scores.append(network.score(params, states, x))
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    y, moved = (
        networks.cut("resnet", 1, (8, 8, 3), 10, 4)
        .blocks[0]
        .apply(
            list(itertools.chain(*params)),
            list(itertools.chain(*states)),
            x,
            jax.random.key(0),
        )
    )
    assert y.shape == (4, 10)
    changed = jax.tree.map(
        lambda a, b: float(abs(a - b).max()), moved, list(itertools.chain(*states))
    )
    assert all(change > 0 for change in jax.tree.leaves(changed))


def test_batches_visit_every_row_of_an_epoch_once():
    data = tasks.Data(np.arange(12.0, dtype=np.float32)[:, None], np.arange(12))
    batches = tasks.Batches(data, 4, 6, seed=0)
    epoch = np.concatenate([batches[n][1] for n in range(3)])
    assert sorted(epoch) == list(range(12)) and len(batches) == 6
    with pytest.raises(IndexError):
        batches[6]


def test_batches_are_shifted_and_mirrored_anew_each_time():
    pixels = 1 + np.arange(6 * 4 * 4 * 3, dtype=np.float32).reshape(6, 4, 4, 3)
    plain, moved, again = (
        tasks.Batches(tasks.Data(pixels, np.arange(6)), 6, 2, 0, j) for j in (0, 1, 1)
    )
    for n in range(2):
        np.testing.assert_array_equal(plain[n][1], moved[n][1])
        np.testing.assert_array_equal(again[n][0], moved[n][0])
        for image, whole in zip(np.asarray(moved[n][0]), np.asarray(plain[n][0]), strict=True):
            padded = np.pad(whole, ((1, 1), (1, 1), (0, 0)))
            views = [padded[y : y + 4, x : x + 4] for y in range(3) for x in range(3)]
            assert any((image == view[:, ::way]).all() for view in views for way in (1, -1))
    first, second = (np.asarray(moved[n][0])[np.argsort(moved[n][1])] for n in range(2))
    assert (first != second).any()


def test_the_rate_of_the_residual_net_falls_twice():
    options = types.SimpleNamespace(momentum=0.0, weight_decay=0.25)
    made = residual.optimiser(0.5, options, 8)

    @jax.jit
    def run(param, gradient):
        update = lambda state, _: made.update(gradient, state, param)[::-1]  # noqa: E731
        return jax.lax.scan(update, made.init(param), length=8)[1]

    taken = run(np.float32(2), np.float32(1))
    np.testing.assert_allclose(taken, -1.5 * 0.5 * np.repeat([1, 0.1, 0.01], [4, 2, 2]), rtol=1e-6)


@pytest.mark.slow
def test_the_residual_net_is_trained_by_every_schedule(tmp_path, capsys):
    command.main(["residual", "--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "residual.json").read_text())["points"]
    assert {own["schedule"] for own in found.values()} == set(residual.SCHEDULES)
    assert len({str(own["runs"][0]["losses"]) for own in found.values()}) == len(found)
    assert "rate 0.01" in capsys.readouterr().out and (tmp_path / "residual.png").exists()


def test_lemma_1_is_bounded_by_the_constants_of_another_run():
    first = [
        {"difference": [0.0, 0.0, 0.0], "way": [0.0, 0.0, 0.0]},
        {"difference": [2.0, 1.0, 0.0], "way": [1.0, 2.0, 0.0]},
        {"difference": [1.0, 1.0, 0.0], "way": [1.0, 1.0, 0.0]},
    ]
    constants = difference.constants(first)
    assert constants == [2.0, 1.0, 0.0]
    other = [{"difference": [1.0, 3.0, 0.0], "way": [1.0, 2.0, 0.0]}]
    assert difference.quotients(other, constants) == [[0.5], [1.5]]


@pytest.mark.slow
def test_delays_trains_by_optimiser_and_by_block(tmp_path, capsys):
    only = ["--digits-lr", "0.1", "--only", "SGD", "DSP(1,1,0"]
    command.main(["delays", "--quick", "--out", str(tmp_path), *only])
    points = json.loads((tmp_path / "delays.json").read_text())["points"]
    losses = [runs[0]["loss"] for runs in points["SGD"]["runs"].values()]
    # In so few steps nothing comes that is eight steps late, or more.
    assert len(losses) == len(delays.DELAYS) and len(set(losses)) == 4
    sides = points["DSP(1,1,0;4,2,0) rate 0.1"]["runs"]
    assert len({str(runs) for runs in sides.values()}) == len(delays.BLOCKS) == 5
    assert "16 steps late" in capsys.readouterr().out and (tmp_path / "delays.png").exists()


def test_guessed_gradients_move_blocks_and_are_learned_from_the_block_above():
    network = networks.cut("plain", 2, (5,), 3, 4)
    params, states = network.init(0)
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(6, 5)).astype(np.float32), rng.integers(3, size=6)
    guess = rng.normal(size=(5, 4)).astype(np.float32)

    @jax.jit
    def both(params, guess):
        weights = dni.Weights(params, [guess])
        _, found = dni.gradients(network, weights, states, x, labels)
        h, _ = network.blocks[0].apply(params[0], states[0], x, jax.random.key(0))

        def of(own, h):
            y, _ = network.blocks[1].apply(own, states[1], h, jax.random.key(0))
            return networks.loss(y, labels)

        last, true = jax.grad(of, (0, 1))(params[1], h)

        def foreseen(own):
            h, _ = network.blocks[0].apply(own, states[0], x, jax.random.key(0))
            made = jnp.concatenate([h, jnp.ones((6, 1))], -1) @ guess
            return jnp.mean(jnp.sum(h * jax.lax.stop_gradient(made), -1))

        def error(guess):
            made = jnp.concatenate([h, jnp.ones((6, 1))], -1) @ guess
            return jnp.mean(jnp.sum((made - 6 * true) ** 2, -1)) / 2

        want = dni.Weights([jax.grad(foreseen)(params[0]), last], [jax.grad(error)(guess)])
        return found, want

    found, want = both(params, guess)
    for got, right in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, right, atol=1e-5)


def test_the_share_of_a_gap_that_is_closed():
    runs = {
        "no delay": [{"loss": 1.0}],
        "none": [{"loss": 3.0}],
        "feedback": [{"loss": 1.5}],
        "prediction": [{"loss": None}],
    }
    assert remedies.closed(runs, "feedback") == 0.75
    assert remedies.closed(runs, "prediction") is None
    assert remedies.closed({**runs, "none": [{"loss": 0.5}]}, "feedback") is None
    seeds = {**runs, "none": [{"loss": 2.0}, {"loss": 4.0}]}
    assert remedies.closed(seeds, "feedback") is None, "the gap is no larger than seeds are apart"
    late = {name for name, (schedule, _) in accuracy.SCHEDULES.items() if "DSP" in name}
    assert len(late) == 6 and isinstance(accuracy.SCHEDULES["BP"][0], pipeline.BackPropagation)
