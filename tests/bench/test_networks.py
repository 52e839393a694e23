"""The measurements of feed-forward networks, at sizes where nothing is measured but all runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bench import __main__ as command
from bench.paper.images import lenet, networks, normalised
from bench.paper.vgg11 import chain, schedules, times, training
from bench.shared import figures, programs
from parscan_bp.layers import activations, init


def _run(name, folder, *options):
    command.main([name, *options, "--out", str(folder)])
    return json.loads((folder / f"{name}.json").read_text())


def _figures(folder):
    drawn = sorted(folder.glob("*.png"))
    assert all(1000 < p.stat().st_size < figures.LARGEST_PNG for p in drawn)
    return [p.stem.rpartition("_")[2] for p in drawn]


@pytest.mark.slow
def test_lenet_trains_both_sides_alike(tmp_path, capsys):
    sizes = "--batch 8 --steps 4 --train-images 32 --test-images 16 --every 2".split()
    result = _run("lenet", tmp_path, *sizes)
    sides = result["training"]
    assert set(sides) == {lenet.BASELINE, lenet.OURS, lenet.CONTROL}
    plain, ours = sides[lenet.BASELINE], sides[lenet.OURS]
    assert len(set(plain["losses"])) == 4, "parameters do not move"
    assert list(plain["test"]) == ["0", "2", "4"]
    np.testing.assert_allclose(plain["losses"], ours["losses"], rtol=1e-4)
    found = result["differences"][lenet.OURS]
    apart = np.abs(np.subtract(plain["losses"], ours["losses"]))
    assert found["training_loss"] == apart.max() and found["test_loss"] < 1e-4
    assert 0 < result["differences"][lenet.CONTROL]["training_loss"] < 1e-4
    errors = result["gradient_errors"]
    assert max(errors["solvers"].values()) <= errors["allowed"]
    assert set(errors["solvers"]) == {"auto", "blelloch"}
    assert _figures(tmp_path) == ["figure6"]
    assert "largest difference from jax.grad" in capsys.readouterr().out


@pytest.mark.slow
def test_vgg11_is_trained_pruned_and_counted(tmp_path, capsys):
    options = ["--quick", "--checkpoint", str(tmp_path / "vgg11.npz"), "--only"]
    result = _run("vgg11", tmp_path, *options, "training", "pruning", "counts", "memory")
    assert set(result["pruning"]) == set(result["counts"]) == set(training.SCOPES)
    for own in result["pruning"].values():
        assert abs(sum(own["kept"]) - 0.2 * result["training"]["weights"]) < 10
        assert [stage["sparsity"] for stage in own["stages"]] == [0.6, 0.8]
    uniform = result["pruning"]["class-uniform"]
    for kept, weights in zip(uniform["kept"], uniform["weights"], strict=True):
        assert abs(kept - 0.2 * weights) < 1
    found = result["counts"][training.SCOPE]["conventions"]
    assert list(found) == ["full weights", "static", "selection", "dynamic"]
    totals = [sum(own["scans"]["0"]["steps"]["flops"]) for own in found.values()]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4
    assert found["full weights"]["scans"]["0"]["above_bp"] == 0
    assert result["memory"]["planned_bytes"] <= result["memory"]["limit"]
    assert _figures(tmp_path) == ["figure10", "figure7", "figure8", "figure9"]
    assert "steps > BP's largest" in capsys.readouterr().out
    again = _run("vgg11", tmp_path, *options, "counts", "--resume")
    assert again["counts"] == result["counts"] and again["memory"] == result["memory"]
    assert len(again["runs"]) == 2


@pytest.mark.slow
def test_vgg11_times_every_scan(tmp_path):
    checkpoint = ["--checkpoint", str(tmp_path / "vgg11.npz")]
    result = _run("vgg11", tmp_path, "--quick", *checkpoint)
    for zeros, scans in result["steps"]["seconds"].items():
        for levels, seconds in scans.items():
            steps = result["counts"][training.SCOPE]["conventions"][zeros]["scans"][levels]["steps"]
            assert len(seconds) == len(steps["kind"])
    assert len(result["chains"]) == 2
    assert _figures(tmp_path) == ["figure10", "figure7", "figure8", "figure9"]


@pytest.fixture(scope="module")
def tiny_chain():
    """conv, relu, pool, conv, relu, pool: pruned by hand."""
    layers = networks.vgg11(size=8, divisor=32)[:6]

    @jax.jit
    def make():
        params = init(layers, jax.random.key(0), (8, 8, 3), np.float32)
        params = jax.tree.map(lambda w: w * (jnp.abs(w) > 0.2) if w.ndim > 1 else w, params)
        return params, jax.random.normal(jax.random.key(1), (2, 8, 8, 3), np.float32)

    return chain.chain(layers, *make(), masked=True)


def test_every_scan_of_a_chain_gives_xlas_cotangents(tiny_chain):
    measured = times.chains(tiny_chain, most=1e6)
    assert {"planned", "linear", "L_m = 1", "L_m = 2"} == set(measured["errors"])
    assert max(measured["errors"].values()) < 1e-5 and measured["left_out"] == []


def test_a_wrong_cotangent_is_noticed(tiny_chain):
    pull, residuals = chain.xla_vjp(tiny_chain)
    scan = chain.scan(tiny_chain, chain.plan_of(tiny_chain).schedule, ())
    got = jax.jit(scan)(tiny_chain.system.operators, 2 * tiny_chain.ct.reshape(2, -1))
    wanted = [v.reshape(2, -1) for v in jax.jit(pull)(residuals, tiny_chain.ct)]
    with pytest.raises(FloatingPointError):
        programs.check_equal(wanted, got, 1e-3, "doubled")


def test_steps_that_are_too_large_are_left_out(tiny_chain):
    steps = schedules.truncated(6, 1)
    assert steps[1].kind == schedules.PRODUCT
    flops = [1.0, 3.0, *[1.0] * (len(steps) - 2)]
    (seconds,) = times.steps_alone(tiny_chain, {"1": flops}, most=2.0).values()
    for step, value in zip(steps, seconds, strict=True):
        assert (value is None) == (step == steps[1] or steps[1].span in step.operands)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    path = tmp_path / "vgg11.npz"
    with pytest.raises(FileNotFoundError, match="run the part 'pruning' first"):
        training.restore(path, [np.zeros(2)], "pruning")
    training.save(path, [{"kernel": np.ones((2, 3))}, None])
    like = [{"kernel": np.zeros((2, 3))}, None]
    assert training.restore(path, like, "pruning")[0]["kernel"].tolist() == np.ones((2, 3)).tolist()
    with pytest.raises(ValueError, match="holds another network"):
        training.restore(path, [{"kernel": np.zeros((3, 2))}, None], "pruning")


def test_normalised_convolutions_fold_into_plain_ones():
    layers = networks.vgg11(size=8, divisor=32)

    @jax.jit
    def make():
        params = init(layers, jax.random.key(0), (8, 8, 3), np.float32)
        params[0]["kernel"] = params[0]["kernel"].at[0].set(0)
        images = 3 + jax.random.normal(jax.random.key(1), (16, 8, 8, 3), np.float32)
        folded = normalised.fold(layers, params, images)
        inside = activations(layers, folded, images)
        again = normalised.unfold(layers, folded, images)
        wanted = [normalised.forward(layers, own, images) for own in (params, again)]
        return folded, inside, wanted

    folded, inside, (wanted, again) = make()
    # A variance of one is one and epsilon, to `unfold`.
    np.testing.assert_allclose(again, wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(inside[-1], wanted, rtol=1e-5, atol=1e-5)
    assert not np.any(folded[0]["kernel"][0]) and np.all(folded[0]["kernel"][1:])
    # Before ReLU, with no bias yet, means are 0 and variances 1.
    np.testing.assert_allclose(inside[1].mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(inside[1].var((0, 1, 2)), 1, atol=1e-3)


def test_pruning_goes_by_stages_and_by_scope():
    params = [{"kernel": np.array([[4.0, 1.0], [3.0, 2.0]])}, {"kernel": np.array([[8.0, 7.0]])}]
    asked = []

    def fit(optimiser, params, steps):
        asked.append(steps)
        still = jax.tree.map(np.zeros_like, params)
        updates, _ = optimiser.update(still, optimiser.init(params), params)
        return optax.apply_updates(params, updates), {"losses": [], "test": {"accuracy": 0.5}}

    pruned, report = training.prune(fit, params, "class-blind", [1 / 6, 0.5], [3, 5], 0.1)
    assert asked == [3, 5] and report["kept"] == [1, 2]
    assert pruned[0]["kernel"].tolist() == [[4, 0], [0, 0]]
    _, report = training.prune(fit, params, "class-uniform", [0.5], [1], 0.1)
    assert report["kept"] == [2, 1]
