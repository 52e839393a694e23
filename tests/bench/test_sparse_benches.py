"""Table 1, planned products and reuse, at sizes where nothing is measured but everything runs."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import __main__ as command
from bench.paper import jacobians, reuse, spgemm
from bench.shared import figures
from parscan_bp.operators import Diagonal

QUICK = "--quick --rounds 2".split()


def _run(name, tmp_path, *options):
    command.main([name, *QUICK, *options, "--out", str(tmp_path)])
    assert 1000 < (tmp_path / f"{name}.png").stat().st_size < figures.LARGEST_PNG
    return json.loads((tmp_path / f"{name}.json").read_text())


def test_jacobians_keeps_the_two_column_methods_apart(tmp_path, capsys):
    sample = "--columns 6 --eager-columns 3 --batch 8".split()
    layers = _run("jacobians", tmp_path, *sample)["layers"]
    assert list(layers) == ["convolution", "ReLU", "max-pooling"]
    # 8x8 images, 3 and 4 channels: 22^2 connected pixels.
    assert layers["convolution"]["nnz"] == 22**2 * 3 * 4
    assert layers["convolution"]["sparsity"] == pytest.approx(1 - (22 / 64) ** 2)
    for row in layers.values():
        methods, columns = row["methods"], row["shape"][1]
        assert set(methods) == {
            "column VJP, jitted",
            "column VJP, eager",
            "batched VJP",
            "coloured JVPs",
        }
        for method, timed in (("column VJP, jitted", 6), ("column VJP, eager", 3)):
            entry = methods[method]
            assert entry["extrapolated"] and entry["columns_timed"] == timed
            for ours, sample in entry["comparisons_of_the_sample"].items():
                whole = sample["baseline"]["median"] * columns / timed
                assert entry["seconds"] == pytest.approx(whole)
                ratio = entry["ratios"][ours]["speedup"]
                assert ratio == pytest.approx(sample["speedup"] * columns / timed)
        assert not methods["coloured JVPs"]["extrapolated"]
    shown = capsys.readouterr().out
    assert "extrapolated to 256 columns from 6 (column VJP, jitted), 3 (column VJP, eager)" in shown


def test_jacobians_that_differ_raise():
    (subject, *_) = jacobians.subjects(4, 2, 0)
    options = jacobians.BENCH.parse(["--columns", "3", "--eager-columns", "1"])
    methods = jacobians.methods_of(subject, options)
    numbers = np.asarray(subject.csr())
    jacobians.check(subject, numbers, methods, 3)
    numbers = numbers.copy()
    numbers[7] += 1e-3
    with pytest.raises(FloatingPointError, match="convolution, own structure"):
        jacobians.check(subject, numbers, methods, 3)


@pytest.mark.slow
def test_planned_products_are_scipys(tmp_path, capsys):
    result = _run("spgemm", tmp_path)
    blocks = result["cases"]["conv.relu.conv 2-3-3, blocks"]
    # On 6x6, along an axis: 16 connected pairs; 3 neighbours of each middle pixel, 2 at the edges.
    pairs = (2 * 2**2 + 4 * 3**2) ** 2
    assert blocks["multiplications"] == 16**2 * 2 * 3 + pairs * 2 * 3 * 3
    assert 0 < blocks["plan_bytes"] < blocks["element_plan_bytes"]
    assert result["cases"]["conv1.relu1, entries"]["plan_bytes"] == 0
    assert all(row["error"] < 1e-5 for row in result["cases"].values())
    assert "conv1.relu1.pool1, blocks" in capsys.readouterr().out


def test_cases_measured_again_join_those_of_the_file(tmp_path):
    relu, pool, *_ = (case.name for case in spgemm.cases(True))
    assert list(_run("spgemm", tmp_path, "--only", relu)["cases"]) == [relu]
    both = _run("spgemm", tmp_path, "--only", pool, "--resume")
    assert list(both["cases"]) == [relu, pool] and len(both["runs"]) == 2


def test_every_planned_product_equals_scipys_entry_by_entry():
    for case in spgemm.cases(True):
        factors = case.make(jax.random.key(1))
        want = np.linalg.multi_dot([np.eye(factors[0].shape[0])] + [_dense(f) for f in factors])
        np.testing.assert_allclose(_dense(spgemm.product(factors)), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(spgemm._csr(factors[-1]).toarray(), _dense(factors[-1]))


def _dense(op):
    return np.asarray(op.as_dense(), np.float64)


def test_a_wrong_product_raises():
    case = spgemm.Case("it", lambda key: (), rows=2)
    op = Diagonal(jnp.arange(4.0))
    right = spgemm._csr(op)[::2]
    assert spgemm._check(case, op, right) < 1e-6
    with pytest.raises(FloatingPointError, match="it, applied to random vectors"):
        spgemm._check(case, op, 1.001 * right)


def test_reuse_gives_the_swept_results(tmp_path, capsys):
    cases = _run("reuse", tmp_path)["cases"]
    assert {row["kind"] for row in cases.values()} == {
        "tied Jacobians",
        "sliding windows",
        "one change",
    }
    assert all(row["error"] <= row["allowed"] for row in cases.values())
    assert "4x" in capsys.readouterr().out


def test_reuse_raises_where_results_differ():
    case = reuse.sliding_windows(np.random.default_rng(0), 16, 3)
    options = reuse.BENCH.parse(QUICK)
    wrong = dataclasses.replace(case, shared=lambda: 1.01 * case.shared())
    with pytest.raises(FloatingPointError, match="adjoints of all windows of 3"):
        reuse.measure(wrong, options)
