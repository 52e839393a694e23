"""The rules of the automatic choice, one after the other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp import kernels, native
from parscan_bp.choice.facts import Facts
from parscan_bp.choice.limits import cpu_limits
from parscan_bp.choice.rules import ON_CHIP, RULES, by_rules
from parscan_bp.choice.work import Work

RNN = Facts(
    platform="cpu",
    length=1000,
    batch=16,
    features=20,
    leaves=1,
    itemsize=4,
    structure="block",
    linearisation="analytic",
    equations=8,
    touched=5000,
    jax_version=(0, 10),
)
OWN = {"linearisation": "matrix-free"}
NEW = {"jax_version": (0, 12)}
TINY = {"batch": 1, "features": 4, "touched": 300}


def test_there_are_few_rules_and_few_numbers():
    assert len(RULES) <= 7
    assert len(dataclasses.fields(cpu_limits())) <= 12


def test_what_kernels_take_is_swept_by_one_on_a_gpu():
    choice = by_rules(dataclasses.replace(RNN, platform="gpu", on_chip=True))
    assert choice.solver == ON_CHIP
    assert ON_CHIP.mode == "sequential"


@pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "dtype", "taken"),
    [
        (pb.cells.Elman(), 1, 16, "float32", True),
        (pb.cells.Elman(), 128, 16, "float32", True),
        (pb.cells.Elman(), 128, 16, "bfloat16", False),
        (pb.cells.Elman(), 132, 16, "float32", False),
        (pb.cells.Elman(), 20, 16, "float16", False),
        (pb.cells.Elman(), 128, 4096, "float32", False),
        (pb.cells.GRU(), 96, 16, "float32", True),
        (pb.cells.GRU(), 10, 16, "float32", False),
        (pb.cells.GRU(), 100, 16, "float32", False),
        (pb.cells.LSTM(), 48, 16, "float32", True),
        (pb.cells.LSTM(), 5, 16, "float32", False),
        (pb.cells.LSTM(), 64, 16, "float32", False),
    ],
)
def test_what_kernels_take(cell, hidden, batch, dtype, taken, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    params, carry = jax.eval_shape(
        lambda: (
            cell.init(jax.random.key(0), 3, hidden, jnp.dtype(dtype)),
            cell.initial_carry((batch,), hidden, jnp.dtype(dtype)),
        )
    )
    xs = jax.ShapeDtypeStruct((1000, batch, 3), jnp.dtype(dtype))

    def choice(params, carry, xs):
        found.append(pb.explain(functools.partial(cell, params), carry, xs).choice)

    found = []
    jax.eval_shape(choice, params, carry, xs)
    assert found == [str(ON_CHIP) if taken else "lax.scan"]


@pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
@pytest.mark.parametrize(
    ("dtype", "options", "told"),
    [
        ("float32", {}, True),
        ("bfloat16", {}, True),
        ("float16", {}, False),
        ("float32", {"forward": "fused"}, False),
        ("float32", {"solver": pb.Sweep()}, False),
    ],
)
def test_what_a_fused_forward_pass_would_gain_is_told(dtype, options, told, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cell, dtype = pb.cells.GRU(), jnp.dtype(dtype)

    def told_of(params, carry, xs):
        found.append(pb.explain(functools.partial(cell, params), carry, xs, **options))

    found = []
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3, 8, dtype))
    carry, xs = (jax.ShapeDtypeStruct(shape, dtype) for shape in [(2, 8), (10, 2, 3)])
    jax.eval_shape(told_of, params, carry, xs)
    assert (found[0].fused is not None) == told
    assert ('forward="fused" would' in str(found[0])) == told
    assert not told or "bench/results/gpu.json" in found[0].fused


def test_a_native_function_is_told_of_where_a_step_may_be_one(monkeypatch):
    pytest.importorskip("llvmlite")
    args = jnp.zeros(3), jnp.zeros((8, 3))
    found = pb.explain(lambda h, x: (jnp.tanh(h + x), h), *args)
    assert "bench/results/peers.json" in found.fused and found.fused in str(found)
    assert pb.explain(lambda h, x: (jnp.sort(h + x), h), *args).fused is None
    monkeypatch.setattr(native.available, "is_available", lambda: False)
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert pb.explain(lambda h, x: (jnp.tanh(h + x), h), *args).fused is None


def test_no_fused_forward_pass_is_told_of_where_there_is_none(monkeypatch):
    step, args = lambda h, x: (jnp.tanh(h + x), h), (jnp.zeros(3), jnp.zeros((8, 3)))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = []
    jax.eval_shape(lambda *args: found.append(pb.explain(step, *args)), *args)
    assert found[0].fused is None


@pytest.mark.parametrize(
    ("changes", "work", "solver", "word"),
    [
        ({}, {}, pb.Sweep(), "sequential"),
        (OWN, {}, pb.Sweep(), "sequential"),
        ({"platform": "tpu"}, {}, None, "tpu"),
        ({"length": 4}, {}, None, "short"),
        ({"length": 10, "batch": 1, "features": 10}, {}, None, "short"),
        (TINY, {}, pb.Sweep(chunk=1, recompute=False), "kernel"),
        (OWN | TINY, {}, None, "kernel"),
        (OWN, {"heavy": "contains fft"}, None, "fft"),
        ({}, {"heavy": "contains fft"}, pb.Sweep(), "sequential"),
        (OWN | {"batch": 64}, {"rows": 64}, None, "64 rows"),
        (OWN | {"batch": 64}, {"rows": 16}, pb.Sweep(), "sequential"),
        (OWN | NEW | {"batch": 1}, {}, None, "0.12"),
        (OWN | TINY | {"touched": 400}, {}, pb.Sweep(), "sequential"),
        (OWN | NEW | {"batch": 1}, {"parts": 4}, pb.Sweep(), "sequential"),
        (OWN | NEW | {"batch": 1}, {"calls": "cholesky"}, pb.Sweep(), "sequential"),
        (OWN | NEW | {"features": 2}, {"rows": 0}, None, "0.12"),
        (OWN | NEW | {"features": 2}, {"rows": 16}, pb.Sweep(), "sequential"),
        (TINY, {"parts": 3}, pb.Sweep(), "sequential"),
        (TINY | NEW, {"parts": 3}, pb.Sweep(chunk=1, recompute=False), "kernel"),
    ],
)
def test_rules(changes, work, solver, word):
    choice = by_rules(
        dataclasses.replace(RNN, **changes), Work(**{"rows": 0, "heavy": None} | work)
    )
    assert choice.solver == solver
    assert word in choice.reason
