"""The measurements themselves, at sizes where nothing is measured but everything runs."""

import functools
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import __main__ as command
from bench.grids import compile, workloads
from bench.grids.flax import floor
from bench.grids.scan import point as scan_point
from bench.grids.steps import bench as steps
from bench.paper.recurrent import bitstream
from bench.shared import candidates, figures, programs, record, timing

ROOT = pathlib.Path(__file__).parents[2]
GRID = "--H 2 --B 2 --T 6 --rounds 2 --unrolls 1 2 --modes value_and_grad backward".split()


def _run(name, tmp_path, *options):
    command.main([name, *options, "--out", str(tmp_path)])
    return json.loads((tmp_path / f"{name}.json").read_text())


def test_the_list_names_every_measurement():
    shown = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in command.BENCHES:
        assert any(line.split()[:1] == [name] for line in shown.splitlines())


@pytest.mark.parametrize("name", command.BENCHES)
def test_every_measurement_explains_its_options(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([name, "--help"])
    assert stopped.value.code == 0 and f"python -m bench {name}" in capsys.readouterr().out


def test_an_unknown_measurement_is_refused():
    with pytest.raises(SystemExit, match="unknown measurement 'nonsense'"):
        command.main(["nonsense"])


def test_rnn_trains_both_sides_alike(tmp_path, capsys):
    sizes = "--T 12 --batch 4 --hidden 3 --steps 8 --train-samples 16 --rounds 2".split()
    result = _run("rnn", tmp_path, *sizes)
    plain, ours = (result["training"][side] for side in ("jax.lax.scan", "parscan_bp.scan"))
    assert len(plain["losses"]) == len(ours["losses"]) == 8
    np.testing.assert_allclose(plain["losses"], ours["losses"], rtol=1e-4)
    assert len(set(plain["losses"])) > 1, "parameters do not move"
    assert plain["seconds"] == sorted(plain["seconds"]) and plain["seconds"][0] > 0
    assert 0 <= result["loss_curve_difference"]["parscan_bp.scan"] < 1e-4
    assert 0 < result["loss_curve_difference"]["jax.lax.scan, 1 ulp away"] < 1e-4
    assert result["gradient_error"] <= result["gradient_tolerance"]
    assert set(result["phases"]) == {"value", "forward", "backward", "value_and_grad", "step"}
    drawn = sorted(tmp_path.glob("*.png"))
    assert [p.name for p in drawn] == ["rnn_loss_by_iteration.png", "rnn_loss_by_time.png"]
    assert all(p.stat().st_size < figures.LARGEST_PNG for p in drawn)
    assert "backward = whole - forward" in capsys.readouterr().out


def test_scan_measures_resumes_and_reports(tmp_path, capsys):
    (elman,) = _run("scan", tmp_path, "--cells", "elman", *GRID)["points"]
    assert elman["status"] == "measured"
    auto = elman["solvers"]["auto"]
    assert set(auto["modes"]) == {"value_and_grad", "backward"}
    assert set(auto["errors"]) == set(elman["tolerances"]) == {"forward", "value_and_grad"}
    assert elman["baseline"]["unroll"]["forward"] in (1, 2)
    assert auto["modes"]["value_and_grad"]["rounds"] == 2
    again = _run("scan", tmp_path, "--cells", "elman", "custom", *GRID, "--resume")
    assert again["points"][0] == elman and again["points"][1]["cell"] == "custom"
    assert len(again["runs"]) == 2
    capsys.readouterr()
    file = str(tmp_path / "scan.json")
    command.main(["scan", "--report", file, file])
    assert "2 comparisons judged" in capsys.readouterr().out


def test_scan_runs_beside_a_checkpointed_body(tmp_path):
    options = "--cells lstm --unrolls 1 --solvers auto checkpointed".split()
    (point,) = _run("scan", tmp_path, *GRID, *options)["points"]
    lean, plain = (
        side["programs"]["value_and_grad"]["temp_bytes"]
        for side in (point["solvers"]["checkpointed"], point["baseline"])
    )
    assert lean == point["checkpointed"]["temp_bytes"] < plain


def test_scan_confirms_in_a_file_of_its_own(tmp_path):
    first = _run("scan", tmp_path, "--cells", "elman", *GRID)
    modes = first["points"][0]["solvers"]["auto"]["modes"]
    modes["value_and_grad"]["high"], modes["backward"]["high"] = 0.5, 0.5
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(first))
    command.main(["scan", "--confirm", str(file), *GRID, "--out", str(tmp_path)])
    (point,) = json.loads((tmp_path / "slow_confirm.json").read_text())["points"]
    assert set(point["solvers"]["auto"]["modes"]) == {"value_and_grad"}


def test_scan_leaves_out_what_does_not_fit(tmp_path):
    result = _run("scan", tmp_path, "--cells", "elman", *GRID, "--memory-limit", "100")
    (point,) = result["points"]
    assert point["status"] == "skipped" and "bytes" in point["reason"]


def test_scan_raises_at_the_end_when_a_derivative_is_wrong(tmp_path, monkeypatch):
    def wrong(step, init, xs, *, solver, **options):
        return jax.lax.scan(lambda h, x: step(h * 1.01, x), init, xs)

    monkeypatch.setattr(candidates.parscan_bp, "scan", wrong)
    with pytest.raises(RuntimeError, match="1 points failed"):
        _run("scan", tmp_path, "--cells", "custom", *GRID)
    ((name, reason),) = json.loads((tmp_path / "scan.json").read_text())["failed"].items()
    assert name == "custom H=2 B=2 T=6" and "differs from its reference" in reason


def test_resuming_with_another_seed_is_refused(tmp_path):
    fresh = {"settings": {"wrt": "params", "seed": 1}, "points": []}
    from_here = record.environment([])
    (tmp_path / "scan.json").write_text(json.dumps({**fresh, "runs": [from_here]}))
    with pytest.raises(ValueError, match="--seed 1"):
        _run("scan", tmp_path, "--resume", *GRID)


def test_compile_counts_loops_and_skips_large_trees(tmp_path):
    options = "--H 2 --T 8 --repeats 1 --solvers lax.scan associative --memory-limit 1".split()
    plain, tree = _run("compile", tmp_path, *options)["programs"]
    assert plain["while_loops"] == 2 and plain["hlo_instructions"] > plain["dots"] > 0
    assert "exceed" in tree["skipped"]


@pytest.mark.slow
def test_steps_are_measured_as_chosen_and_by_the_sweep(tmp_path, capsys):
    cheap = "--rounds 2 --budget-seconds 0".split()
    (light,) = _run("steps", tmp_path, "--only", "Elman by hand, 20 x 16", *cheap)["points"]
    (heavy,) = _run("steps", tmp_path, "--only", "bodies, 16", *cheap)["points"]
    assert light["choice"].startswith("Sweep") and heavy["choice"] == "lax.scan"
    assert set(light["solvers"]) == {"auto", "sweep"}
    for point in (light, heavy):
        for entry in point["solvers"].values():
            assert 0 <= entry["error"] <= point["tolerance"]
            assert entry["value_and_grad"]["rounds"] == 2
    assert "makes values of 768 entries" in capsys.readouterr().out


def test_every_rollout_can_be_differentiated():
    def point_and_gradient(make):
        rollout = make()
        loss = lambda point: sum(  # noqa: E731
            jnp.sum(leaf) for leaf in jax.tree.leaves(rollout.run(jax.lax.scan, point))
        )
        return rollout.point, jax.grad(loss)(rollout.point)

    for name, make in steps.PROGRAMS.items():
        point, gradient = jax.eval_shape(functools.partial(point_and_gradient, make))
        assert gradient == point, name


def test_flax_layers_are_checked_and_compared(tmp_path, capsys):
    sizes = "--cells GRUCell --H 3 --B 2 --T 8 --rounds 2 --floor".split()
    (point,) = _run("flax", tmp_path, *sizes)["points"]
    assert point["floor"]["candidate"]["median"] > 0
    assert set(point["solvers"]) == {"auto", "kept"}
    for entry in point["solvers"].values():
        assert entry["error"] <= point["tolerance"]
        assert set(entry["phases"]) == {"forward", "backward", "gradient", "value_and_grad"}
    assert "GRUCell H=3 B=2 T=8" in capsys.readouterr().out


@pytest.mark.parametrize("cell", floor.GATES)
def test_the_floor_of_a_gradient_is_that_of_a_layer_of_known_slopes(cell):
    program = floor.program(workloads.Size(cell, 3, 2, 8), seed=0)
    (data,) = program.arguments

    def states(weights, bias):
        def step(h, t):
            slopes, x = t
            joint = jnp.einsum("bh,hgk->bgk", h, weights[0]) + jnp.einsum(
                "bh,hgk->bgk", x, weights[1]
            )
            h = (slopes * (joint + bias)).sum(1)
            return h, h

        return jax.lax.scan(step, data["states"][0], (data["slopes"], data["inputs"]))[1]

    weights = (data["weights"], jnp.zeros_like(data["weights"]))
    bias = jnp.zeros(data["weights"].shape[1:])
    after = states(weights, bias)
    data = {**data, "states": jnp.concatenate([data["states"][:1], after[:-1]])}
    want = jax.vjp(states, weights, bias)[1](data["direct"])
    got = program.run(data)
    for a, b in zip(got, jax.tree.leaves(want), strict=True):
        assert jnp.allclose(a, b.reshape(a.shape), rtol=1e-4, atol=1e-5)


def test_operations_are_counted_in_hlo_text():
    text = """
  %add.1 = f32[] add(f32[] %x, f32[] %y)
  ROOT %while.3 = (s32[], f32[4]{0}) while((s32[], f32[4]{0}) %tuple.2), condition=%c, body=%b
  %dot.7 = f32[4,4]{1,0} dot(f32[4,4]{1,0} %a, f32[4,4]{1,0} %b), lhs_contracting_dims={1}
ENTRY %main (p: f32[4]) -> f32[4] {
"""
    assert compile.count_operations(text) == {"add": 1, "while": 1, "dot": 1}


def test_scaled_chain_agrees_with_float64(tmp_path, capsys):
    result = _run("scaled", tmp_path, "--length", "203", "--rounds", "2")
    assert set(result["methods"]) == {"tree", "blocks"}
    for entry in result["methods"].values():
        assert entry["error"] <= entry["allowed"]
        assert not entry["plain_is_finite"]
    assert "plain leaves float32's range" in capsys.readouterr().out


@pytest.mark.parametrize("cell", workloads.CELLS)
def test_every_output_and_the_last_carry_reach_the_loss(cell):
    work = workloads.make(workloads.Size(cell, 3, 2, 5), seed=0, wrt=workloads.EVERYTHING)
    assert set(work.point) == {"params", "carry", "xs"}
    assert work.state == (6 if cell == "lstm" else 3)
    weights = [work.data["output_weights"], work.data["final_weights"]]
    gradient = jax.grad(work.loss(jax.lax.scan))(work.point, work.data)
    assert all(bool(jnp.all(leaf != 0)) for leaf in jax.tree.leaves((weights, gradient["xs"])))
    leaves = jax.tree.leaves((work.point, work.data))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_equal_results_pass_and_others_raise():
    wanted = {"a": jnp.array([1.0, -4.0]), "b": jnp.zeros(2)}
    assert programs.check_equal(wanted, wanted, 1e-6, "it") == 0.0
    near = {"a": wanted["a"] + jnp.array([0.0, 4e-3]), "b": wanted["b"]}
    assert programs.check_equal(wanted, near, 1e-2, "it") == pytest.approx(1e-3, rel=1e-2)
    with pytest.raises(FloatingPointError, match=r"it\['a'\] differs"):
        programs.check_equal(wanted, near, 1e-4, "it")
    with pytest.raises(FloatingPointError):
        programs.check_equal(wanted, {"a": wanted["a"] * jnp.nan, "b": wanted["b"]}, 1e9, "it")


def test_the_tolerance_follows_what_one_ulp_does():
    steady = programs.tolerance(jnp.ones(3), jnp.ones(3), terms=1)
    assert 1e-5 < steady < 2e-5
    assert programs.tolerance(jnp.ones(3), jnp.ones(3), terms=10000) > 5 * steady
    assert programs.tolerance(jnp.ones(3), jnp.full(3, 1.0005), 1) == pytest.approx(5e-3, rel=1e-3)
    assert programs.tolerance(jnp.ones(3), jnp.full(3, 2.0), 1) == 1e-2


def test_forward_keeps_the_residuals():
    size = workloads.Size("elman", 3, 2, 50)
    work = workloads.make(size, seed=0)
    forward = programs.derivatives(work.loss(jax.lax.scan))[timing.FORWARD]
    _, residuals = jax.jit(forward)(work.point, work.point, work.data)
    assert sum(leaf.size for leaf in residuals) >= size.length * size.batch * size.hidden


def test_the_value_alone_hands_out_as_many_arrays_as_with_its_gradient():
    work = workloads.make(workloads.Size("lstm", 3, 2, 9), seed=0)
    made = programs.derivatives(work.loss(jax.lax.scan))
    alone, whole = (
        jax.jit(made[name])(work.point, work.point, work.data)
        for name in (timing.VALUE, timing.VALUE_AND_GRAD)
    )
    assert jax.tree.structure(alone) == jax.tree.structure(whole)
    np.testing.assert_allclose(alone[0], whole[0], rtol=1e-6)


def test_the_direction_makes_the_directional_derivative_positive():
    work = workloads.make(workloads.Size("gru", 3, 2, 9), seed=0)
    loss = work.loss(jax.lax.scan)
    direction = programs.ascent(jax.grad(loss)(work.point, work.data))
    _, slope = programs.derivatives(loss)["jvp"](work.point, direction, work.data)
    assert slope > 0
    largest = [float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(direction)]
    assert largest == pytest.approx([1.0] * len(largest))


def test_bits_follow_their_class():
    streams = bitstream.draw(np.random.default_rng(0), 200, 4000)
    rates = streams.bits.mean(1)
    np.testing.assert_allclose(rates, 0.05 + 0.1 * streams.labels, atol=0.05)
    assert set(streams.labels) == set(range(10))
    batch = streams.batch(np.array([3, 5]))
    assert batch.inputs.shape == (4000, 2, 1)
    np.testing.assert_array_equal(batch.inputs[:, 1, 0], streams.bits[5])


def test_an_epoch_visits_every_row_once():
    batches = bitstream.shuffled(np.random.default_rng(0), 12, 4)
    first, second = ([next(batches) for _ in range(3)] for _ in range(2))
    assert sorted(np.concatenate(first)) == list(range(12)) == sorted(np.concatenate(second))
    assert not np.array_equal(first, second)


def test_every_mode_names_programs_that_exist():
    known = programs.derivatives(lambda point, data: jnp.sum(point))
    assert {name for needed in scan_point.PROGRAMS_OF.values() for name in needed} <= set(known)


def test_forward_tells_passes_errors_and_times(tmp_path, capsys):
    options = "--quick --systems elman --methods fixed newton".split()
    (point,) = _run("forward", tmp_path, *options)["points"]
    assert len(point["exponents"]) == 2 and point["exponents"][0] < 0
    for method in ("fixed", "newton"):
        entry = point["methods"][method]
        assert entry["value"]["speedup"] > 0
        for trial in entry["trials"]:
            assert trial["certified"] and 0 < trial["passes"] <= 12
            assert trial["error"] <= trial["estimate"] + trial["floor"]
    assert (tmp_path / "forward.png").exists()
    assert "understated" in capsys.readouterr().out


def test_loops_compares_gradients_and_memory(tmp_path, capsys):
    options = "--quick --programs vector --equinox no".split()
    (point,) = _run("loops", tmp_path, *options)["points"].values()
    sides = point["sides"]
    assert {"lax.scan of n", "ours"} <= set(sides)
    assert all(side["difference"] < 1e-3 and side["temp_bytes"] > 0 for side in sides.values())
    assert sides["ours"]["comparison"]["speedup"] > 0
    assert "vector, n=20" in capsys.readouterr().out
