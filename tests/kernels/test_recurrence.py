"""The fused recurrences against the loops of their cells in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from kernel_cases import BATCHES, GRID, LENGTHS, SIZES, in_turn, needs_kernels
from recurrence_cases import CELLS, draw

from parscan_bp.cells import Elman
from parscan_bp.cells.fused import FusedCell
from parscan_bp.kernels import fused_recurrence, interpreter, reference
from parscan_bp.kernels.fused import largest_hidden
from parscan_bp.kernels.opened import opened
from parscan_bp.kernels.tiles import fused_tile, padded_order

TOLERANCE = 2e-5
"""Of the largest number, in float32: a thousand steps, each of which rounds."""


@pytest.mark.parametrize(("cell", "reverse"), [(cell, k % 2 == 1) for k, cell in enumerate(CELLS)])
def test_reference_in_float64(cell, reverse):
    with jax.enable_x64(True):
        draw(cell, 31, 3, 8, reverse=reverse, dtype=jnp.float64).check(reference.recurrence, 1e-13)


# Every length, batch and cell at least once; the products of all are marked slow.
SPREAD = [
    (list(CELLS)[k % 5], size, LENGTHS[k % 6], BATCHES[k % 3]) for k, size in enumerate(SIZES[::2])
]


@pytest.mark.parametrize(("cell", "size", "length", "batch"), SPREAD)
def test_reference(cell, size, length, batch):
    draw(cell, length, batch, size).check(reference.recurrence, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("size", "length", "batch"), GRID)
def test_reference_on_the_grid(cell, size, length, batch):
    draw(cell, length, batch, size).check(reference.recurrence, TOLERANCE)


# Weights that stay in registers, and that are read in slices; samples that do not fill the
# last instance; fewer steps than are fetched ahead, and more.
SIMULATED = [
    ("elman", 11, 3, 5, True, "float32"),
    ("relu", 1, 3, 4, False, "bfloat16"),
    ("gru", 10, 2, 20, False, "float32"),
    ("gru_one_bias", 2, 3, 3, True, "bfloat16"),
    ("lstm", 3, 1, 33, True, "float32"),
    ("lstm", 9, 2, 1, False, "bfloat16"),
    pytest.param("elman", 3, 300, 8, False, "float32", marks=pytest.mark.slow),
    pytest.param("elman", 4, 2, 200, True, "float32", marks=pytest.mark.slow),
    pytest.param("gru", 4, 2, 128, True, "float32", marks=pytest.mark.slow),
    pytest.param("lstm", 4, 2, 100, False, "float32", marks=pytest.mark.slow),
    pytest.param("lstm", 4, 2, 128, False, "bfloat16", marks=pytest.mark.slow),
]


@needs_kernels
@pytest.mark.parametrize(("cell", "length", "batch", "size", "reverse", "dtype"), SIMULATED)
def test_kernels(cell, length, batch, size, reverse, dtype, capfd):
    """With races detected; what is rounded to bfloat16 is only what leaves the kernels."""
    case = draw(cell, length, batch, size, reverse=reverse, dtype=jnp.dtype(dtype))
    run = functools.partial(fused_recurrence, interpret=interpreter(detect_races=True))
    case.check(run, 2e-6 if dtype == "float32" else 2e-2)
    out, err = capfd.readouterr()
    assert "RACE DETECTED" not in out + err


@pytest.mark.parametrize(("cell", "reverse"), [(cell, k % 2 == 1) for k, cell in enumerate(CELLS)])
def test_reference_of_cotangents_of_the_last_carry(cell, reverse):
    with jax.enable_x64(True):
        case = draw(cell, 7, 3, 8, reverse=reverse, dtype=jnp.float64, of_last=True)
        case.check(reference.recurrence, 1e-13)


@needs_kernels
@pytest.mark.parametrize(
    ("cell", "length", "reverse"), [("elman", 11, True), ("gru", 1, False), ("lstm", 3, True)]
)
def test_cotangents_of_the_last_carry(cell, length, reverse, capfd):
    case = draw(cell, length, 3, 3, reverse=reverse, of_last=True)
    case.check(functools.partial(fused_recurrence, interpret=interpreter(detect_races=True)), 2e-6)
    out, err = capfd.readouterr()
    assert "RACE DETECTED" not in out + err


@needs_kernels
@pytest.mark.usefixtures("one_multiprocessor")
@pytest.mark.parametrize(
    ("cell", "length", "batch", "size", "reverse"),
    [("elman", 2, 3, 3, False), ("gru", 3, 5, 10, True)],
)
def test_sums_over_samples_that_share_a_multiprocessor(cell, length, batch, size, reverse, capfd):
    """The last of which work on fewer."""
    rule = FusedCell(CELLS[cell]).backward_rule
    tile = fused_tile(rule, padded_order(size, 4), batch, 4)
    assert tile.sums and batch % tile.samples
    case = draw(cell, length, batch, size, reverse=reverse)
    case.check(functools.partial(fused_recurrence, interpret=interpreter(detect_races=True)), 2e-6)
    out, err = capfd.readouterr()
    assert "RACE DETECTED" not in out + err


class _Dividing(Elman):
    """Elman, whose slope is made by a division by h: of zeros, it is NaN."""

    def pull(self, gates, past, new, cts):
        return [cts[0] * (new[0] - new[0] ** 3) / new[0]], []


@needs_kernels
@pytest.mark.usefixtures("one_multiprocessor")
def test_sums_are_of_the_samples_there_are(monkeypatch):
    monkeypatch.setitem(CELLS, "elman", _Dividing())
    run = functools.partial(fused_recurrence, interpret=interpreter())
    draw("elman", 1, 3, 3).check(run, 2e-6)


# The largest of which they are made in float32, for few samples and for many; and the next.
@pytest.mark.parametrize(
    ("cell", "batch", "most", "more"),
    [
        ("elman", 16, 64, 68),
        ("elman", 1000, 64, 68),
        ("gru", 16, 32, 36),
        ("gru", 1000, 32, 36),
        ("lstm", 16, 32, 36),
        ("lstm", 1000, 24, 28),
    ],
)
def test_where_sums_are_made(cell, batch, most, more):
    form = FusedCell(CELLS[cell])
    assert fused_tile(form.backward_rule, most, batch, 4).sums
    assert not fused_tile(form.backward_rule, more, batch, 4).sums
    assert not fused_tile(form.forward_rule, most, batch, 4).sums


# Of the product with the inputs, of the gates but Elman's, and backward of weights and inputs.
@needs_kernels
@pytest.mark.parametrize(("cell", "size", "weights"), [("gru", 32, 1), ("gru", 36, 2)])
def test_products_beside_the_kernel(cell, size, weights):
    case = draw(cell, 4, 3, size)
    text = jax.jit(lambda: _backward(case)(fused_recurrence)).trace()
    text = text.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.dot_general") == 2 + weights + 1


@needs_kernels
@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
@pytest.mark.parametrize("size", [3, 64])
def test_one_kernel_each_way(cell, size):
    case = draw(cell, 4, 3, size)
    form = FusedCell(CELLS[cell])
    for call, rule in [(case.forward, form.forward_rule), (_backward(case), form.backward_rule)]:
        run = jax.jit(functools.partial(call, fused_recurrence))
        text = run.trace().lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("custom_call @mosaic_gpu_v2") == 1
        assert str(run.trace().jaxpr).count(f"name=recurrence_{rule.name}") == 1


def _backward(case):
    after = jax.tree.map(jnp.float32, case.after)
    return lambda run: case.backward(run, after)


@needs_kernels
@pytest.mark.parametrize(("cell", "most"), [("elman", 224), ("gru", 128), ("lstm", 100)])
def test_the_largest_hidden(cell, most):
    form = FusedCell(CELLS[cell])
    assert min(largest_hidden(r, 4) for r in (form.forward_rule, form.backward_rule)) == most
    with pytest.raises(NotImplementedError, match=f"hidden: got {most + 40}"):
        draw(cell, 1, 1, most + 40).forward(fused_recurrence)


COMPILED = [(c, *g) for c, g in itertools.product(CELLS, GRID) if c != "lstm" or g[0] <= 100]


@pytest.mark.gpu
@needs_kernels
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize(
    ("cell", "size", "length", "batch", "reverse"),
    in_turn(COMPILED, lambda cell, size, length, batch: (cell, size)),
)
def test_compiled_kernels(cell, size, length, batch, reverse):
    case = draw(cell, length, batch, size, reverse=reverse)
    run = jax.jit(fused_recurrence, static_argnums=0, static_argnames="reverse")
    with jax.default_matmul_precision("highest"):  # of the products beside the kernels
        case.check(run, TOLERANCE)


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
@pytest.mark.parametrize("of_last", [False, True])
def test_no_product_beside_the_kernels_is_rounded(cell, of_last):
    """A GPU's default rounds float32 to TF32; the products in the kernels are not rounded."""
    own, steps = CELLS[cell], (3, 2)
    params = own.init(jax.random.key(0), 4, 8, jnp.float32)
    init = jax.tree.leaves(own.initial_carry((2,), 8, jnp.float32))
    before = [jnp.zeros((*steps, 8), jnp.float32) for _ in init]

    def backward(params, xs):
        cts = None if of_last else before
        run = functools.partial(reference.recurrence, reverse=True)
        return FusedCell(own).backward(run, params, init, before, xs, before, cts, init)

    products = [
        eqn.params["precision"]
        for eqn in _equations(jax.make_jaxpr(backward)(params, jnp.zeros((*steps, 4), jnp.float32)))
        if eqn.primitive.name == "dot_general"
    ]
    assert len(products) >= 4
    assert all(p is not None and set(p) == {lax.Precision.HIGHEST} for p in products)


def test_a_kernel_holds_no_function_with_a_derivative_of_its_own():
    """Those of jax 0.11 do not take it."""

    def step(a, b):
        return [jax.nn.relu(a[0]) + jax.nn.softplus(b)], {"last": jax.jit(jax.nn.silu)(a[1])}

    args = [jnp.linspace(-1.0, 1.0, 5), jnp.arange(5.0)], jnp.ones(5)
    for got, want in zip(*(jax.tree.leaves(f(*args)) for f in (opened(step), step)), strict=True):
        np.testing.assert_array_equal(got, want)
    names, before = (
        {eqn.primitive.name for eqn in _equations(jax.make_jaxpr(f)(*args))}
        for f in (opened(step), step)
    )
    assert any("custom" in name for name in before)
    assert not any("custom" in name or name in ("jit", "pjit") for name in names)


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from _equations(inner)
