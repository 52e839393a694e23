"""The automatic choice: what it takes, and what it leaves to `lax.scan`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp import kernels
from parscan_bp.choice.facts import Facts
from parscan_bp.choice.rules import ON_CHIP, choose
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
    touched=500,
    outer_gates=False,
    jax_version=(0, 10),
)
ONE_ROW = {"batch": 1, "jax_version": (0, 12)}
ONE_FEATURE = {"features": 1, "equations": 20, "jax_version": (0, 12)}
GATED = {"equations": 20}
OWN = {"features": 64, "linearisation": "matrix-free"}
OWN_TINY = {"linearisation": "matrix-free", "equations": 12}


def test_what_kernels_take_is_swept_by_one_on_a_gpu():
    choice = choose(dataclasses.replace(RNN, platform="gpu", on_chip=True))
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


def test_a_recurrent_network_on_a_cpu_is_swept():
    assert choose(RNN).solver == pb.Sweep()
    for small in ({"batch": 3, "features": 2, "length": 300}, {"features": 1}):
        assert choose(dataclasses.replace(RNN, **small)).solver == pb.Sweep()
    assert str(choose(RNN)).startswith("Sweep(")


@pytest.mark.parametrize(
    "changes",
    [
        {"jax_version": (0, 11)},
        {"batch": 2},
        {"features": 96},
        {"features": 256, "linearisation": "matrix-free"},
    ],
)
def test_a_single_row_is_swept_before_jax_0_12_or_with_many_features(changes):
    assert choose(dataclasses.replace(RNN, **{**ONE_ROW, **changes})).solver == pb.Sweep()


@pytest.mark.parametrize(
    ("changes", "work"),
    [
        ({}, Work(16, None)),
        ({"batch": 256, "linearisation": "analytic"}, Work(256, "contains lu")),
        ({"features": 20}, Work(50, None)),
        ({"features": 20, "jax_version": (0, 12)}, Work(16, None)),
        ({"batch": 1, "features": 2000, "jax_version": (0, 12)}, Work(1, None)),
    ],
)
def test_ones_own_step_is_swept_if_little_is_multiplied_or_a_cell_states_its_jacobian(
    changes, work
):
    assert choose(dataclasses.replace(RNN, **{**OWN, **changes}), work).solver == pb.Sweep()


@pytest.mark.parametrize(
    ("changes", "work", "word"),
    [
        ({}, Work(16, "contains lu"), "the step contains lu"),
        ({}, Work(17, None), "17 rows"),
        ({"jax_version": (0, 12)}, Work(16, None), "16 rows"),
        ({"features": 20, "jax_version": (0, 12)}, Work(0, None), "from jax 0.12 on"),
    ],
)
def test_a_step_that_is_mostly_work_is_left_to_lax_scan(changes, work, word):
    choice = choose(dataclasses.replace(RNN, **{**OWN, **changes}), work)
    assert choice.solver is None and word in choice.reason


OWN_ROW = {**ONE_ROW, "linearisation": "matrix-free", "equations": 30}
LSTM, GRU = Work(1, None, products=1, parts=4), Work(1, None, products=1, parts=3)
LEFT, KEPT = None, pb.Sweep(recompute=False)


@pytest.mark.parametrize(
    ("changes", "work", "solver"),
    [
        ({"features": 8, "leaves": 2}, LSTM, pb.Sweep()),
        ({"features": 8, "leaves": 2, "length": 20}, LSTM, LEFT),
        ({"features": 20, "leaves": 2, "length": 20}, LSTM, pb.Sweep()),
        ({"features": 128, "leaves": 2}, LSTM, KEPT),
        ({"features": 128, "leaves": 2, "unroll": 2}, LSTM, LEFT),
        ({"features": 128, "leaves": 2}, dataclasses.replace(LSTM, products=2), LEFT),
        ({"features": 128, "leaves": 2}, dataclasses.replace(LSTM, parts=2), LEFT),
        ({"features": 128, "leaves": 2}, dataclasses.replace(LSTM, heavy="sorts"), LEFT),
        ({"features": 128, "leaves": 2, "jax_version": (0, 11)}, LSTM, pb.Sweep()),
        ({"features": 64, "vector": True}, GRU, pb.Sweep()),
        ({"features": 64}, GRU, LEFT),
        ({"features": 16, "vector": True}, GRU, LEFT),
        ({"features": 4, "vector": True, "length": 600}, GRU, LEFT),
        ({"features": 4, "vector": True, "length": 500}, GRU, pb.Sweep(1, recompute=False)),
        ({"features": 4, "leaves": 2, "length": 500}, LSTM, LEFT),
    ],
)
def test_gates_of_one_product_on_a_single_row_are_swept_from_jax_0_12_on(changes, work, solver):
    assert choose(dataclasses.replace(RNN, **{**OWN_ROW, **changes}), work).solver == solver


@pytest.mark.parametrize(
    ("changes", "work", "solver"),
    [
        ({}, Work(16, None, products=1), pb.Sweep()),
        ({"length": 500}, Work(16, None, products=1), LEFT),
        ({}, Work(17, None, products=1), LEFT),
        ({}, Work(16, None, products=2), LEFT),
        ({}, Work(16, None, products=1, parts=3), LEFT),
        ({"features": 128}, Work(16, None, products=1, parts=3), pb.Sweep()),
    ],
)
def test_many_steps_that_multiply_rows_once_are_swept_from_jax_0_12_on(changes, work, solver):
    changes = {**OWN, "jax_version": (0, 12), **changes}
    assert choose(dataclasses.replace(RNN, **changes), work).solver == solver


@pytest.mark.parametrize(
    "changes", [{"jax_version": (0, 11)}, {"batch": 1024}, {"features": 2, "leaves": 1}]
)
def test_single_features_are_swept_before_jax_0_12_or_with_many_rows(changes):
    assert choose(dataclasses.replace(RNN, **{**ONE_FEATURE, **changes})).solver == pb.Sweep()


@pytest.mark.parametrize(
    ("cell", "inputs", "batch", "choice"),
    [
        (pb.cells.GRU(), 1, 16, pb.Sweep(recompute=False)),
        (pb.cells.LSTM(), 1, 16, pb.Sweep(recompute=False)),
        (pb.cells.MinGRU(), 1, 16, "lax.scan"),
        (pb.cells.LSTM(), 2, 16, pb.Sweep()),
        (pb.cells.LSTM(), 1, 4, pb.Sweep()),
        (pb.cells.Elman(), 1, 16, pb.Sweep()),
    ],
)
def test_gates_of_a_single_input_feature_are_not_made_twice(cell, inputs, batch, choice):
    params = cell.init(jax.random.key(0), inputs, 20)
    carry, xs = cell.initial_carry((batch,), 20), jnp.zeros((1000, batch, inputs))
    for step in (functools.partial(cell, params), lambda c, x: cell(params, c, x)):
        found = pb.explain(step, carry, xs)
        assert found.choice == str(choice)
        assert choice == pb.Sweep() or "single input feature" in found.reason
        assert ("linearised steps" in found.stored) == (choice == pb.Sweep(recompute=False))


def test_many_rows_of_a_single_input_feature_are_swept_by_the_cells_own_jacobian():
    cell = pb.cells.GRU()
    params = cell.init(jax.random.key(0), 1, 20)
    carry, xs = cell.initial_carry((512,), 20), jnp.zeros((1000, 512, 1))
    own = lambda c, x: cell(params, c, x)  # noqa: E731
    assert pb.explain(functools.partial(cell, params), carry, xs).choice == str(pb.Sweep())
    assert pb.explain(own, carry, xs).reason.startswith("the step multiplies 512 rows")


def test_gates_of_a_single_input_feature_with_a_named_jacobian_are_left_to_lax_scan():
    cell = pb.cells.GRU()
    params = cell.init(jax.random.key(0), 1, 20)
    step = lambda c, x: cell(params, c, x)  # noqa: E731
    carry, xs = jnp.ones((16, 20)), jnp.ones((1000, 16, 1))
    assert pb.explain(step, carry, xs, jacobian="dense").choice == "lax.scan"
    assert choose(dataclasses.replace(RNN, **ONE_ROW, linearisation="columns")).solver is None


@pytest.mark.parametrize(
    ("changes", "recompute"),
    [
        ({}, False),
        ({"batch": 1}, True),
        ({"batch": 1, "features": 64}, False),
        ({"batch": 1, "features": 96, "jax_version": (0, 12)}, False),
        ({"batch": 1, "features": 96, "jax_version": (0, 12), "unroll": 2}, True),
        ({"linearisation": "matrix-free"}, True),
        ({"may_keep": False}, True),
        ({"length": 3000}, False),
        ({"length": 10000}, True),
        ({"batch": 1, "features": 64, "length": 10000}, True),
        ({"features": 8, "leaves": 2, "length": 100, "batch": 1}, False),
        ({"features": 8, "leaves": 2, "length": 200, "batch": 2, **GATED}, False),
        ({"features": 8, "leaves": 2, "length": 300, **GATED}, True),
        ({"features": 8, "length": 100, **GATED}, False),
        ({"features": 8, "length": 100, "batch": 3, **GATED}, True),
        ({"features": 8, "length": 200, **GATED}, True),
        ({"features": 8, "length": 100}, True),
        ({"features": 40, "leaves": 2, "length": 200, "batch": 4, **GATED}, True),
    ],
)
def test_what_the_layer_would_store_is_kept_where_that_pays(changes, recompute):
    choice = choose(dataclasses.replace(RNN, **{"may_keep": True, **changes}))
    assert choice.solver == pb.Sweep(recompute=recompute)


KEPT, MADE_AGAIN = pb.Sweep(recompute=False), pb.Sweep()
FROM_GATES = pb.Sweep(chunk=10, recompute=False)


@pytest.mark.parametrize(
    ("changes", "solver"),
    [
        ({"length": 4}, None),
        ({"length": 8}, KEPT),
        ({"length": 40}, MADE_AGAIN),
        ({"length": 100, "batch": 1, "features": 64}, FROM_GATES),
        ({"length": 100, "batch": 1, "features": 64, "jax_version": (0, 12)}, KEPT),
        ({"length": 100, "batch": 1, "features": 64, "may_keep": True}, KEPT),
        ({"length": 100, "batch": 1, "features": 67}, KEPT),
        ({"length": 28, "batch": 1, "features": 64}, KEPT),
        ({"length": 100, "batch": 1, "features": 512, "leaves": 2}, pb.Sweep(chunk=4)),
        ({"length": 100, "batch": 1, "features": 512, "leaves": 2, "may_keep": True}, KEPT),
        ({"length": 100, "batch": 1, "features": 92, "leaves": 2}, pb.Sweep(chunk=4)),
        ({"length": 100, "batch": 1, "features": 90, "leaves": 2}, MADE_AGAIN),
        ({"length": 100, "batch": 1, "features": 20, "may_keep": True}, pb.Sweep(chunk=50)),
        ({"length": 43, "batch": 2, "features": 20, "may_keep": True}, pb.Sweep(chunk=22)),
        ({"length": 30, "batch": 4, "features": 40, "may_keep": True}, MADE_AGAIN),
        ({"length": 30, "batch": 4, "features": 12, "may_keep": True}, KEPT),
        ({"length": 129, "batch": 1, "features": 20, "may_keep": True}, MADE_AGAIN),
        ({"length": 99, "batch": 1, "features": 20, "may_keep": True, "equations": 6}, MADE_AGAIN),
        ({"length": 28, "batch": 1, "features": 512, "leaves": 2}, KEPT),
        ({"length": 40, "batch": 3, "features": 128, "leaves": 2}, KEPT),
        ({"length": 2048, "batch": 1, "features": 256}, KEPT),
        ({"length": 2048, "batch": 1, "features": 256, "itemsize": 8}, MADE_AGAIN),
        ({"length": 2049, "batch": 1, "features": 256}, MADE_AGAIN),
        ({"length": 300, "batch": 1, "features": 255}, MADE_AGAIN),
        ({"length": 300, "batch": 2, "features": 256}, MADE_AGAIN),
        ({"length": 28, "batch": 64, "features": 64}, None),
        ({"length": 28, "batch": 64, "features": 40, "leaves": 2}, KEPT),
        ({"length": 28, "batch": 64, "features": 256, "leaves": 2}, None),
        ({"length": 100, "batch": 64, "features": 256, "leaves": 2}, KEPT),
        ({"length": 28, "batch": 64, "features": 40, "leaves": 2, "may_keep": True}, None),
        ({"length": 300, "batch": 64, "features": 64}, MADE_AGAIN),
        ({"length": 28, "batch": 64, "features": 64, "equations": 6}, MADE_AGAIN),
        ({"length": 28, "batch": 256, "features": 64, "equations": 6}, None),
        ({"length": 28, "batch": 16, "features": 128, "linearisation": "matrix-free"}, None),
        ({"length": 8, "features": 256, "structure": "diagonal"}, MADE_AGAIN),
    ],
)
def test_few_steps_of_a_gated_cell_are_kept_or_left_to_lax_scan(changes, solver):
    gated = dataclasses.replace(RNN, equations=19, jax_version=(0, 10))
    assert choose(dataclasses.replace(gated, **changes)).solver == solver


STEP_BY_STEP = pb.Sweep(chunk=1, recompute=False)


def test_gated_cells_of_a_few_numbers_are_swept_before_jax_0_12():
    gated = dataclasses.replace(RNN, batch=1, features=4, equations=14)
    assert choose(gated).solver == pb.Sweep()
    assert choose(dataclasses.replace(gated, length=70)).solver == STEP_BY_STEP
    assert choose(dataclasses.replace(gated, length=70, touched=1025)).solver is None
    assert choose(dataclasses.replace(gated, jax_version=(0, 12))).solver is None


@pytest.mark.parametrize(
    ("changes", "solver"),
    [
        ({"features": 4, **GATED}, KEPT),
        ({"features": 4, **GATED, "length": 40}, STEP_BY_STEP),
        ({"features": 4, **GATED, "length": 100, "equations": 29, "leaves": 2}, KEPT),
        ({"features": 20, "equations": 29}, None),
        ({"features": 24, "equations": 29}, KEPT),
        ({"features": 64, **GATED, "length": 10000}, MADE_AGAIN),
        ({"features": 20}, KEPT),
        ({"features": 20, "length": 40}, KEPT),
        ({"features": 8}, KEPT),
        ({"features": 8, "length": 512}, None),
        ({"features": 32}, None),
        ({"features": 40}, KEPT),
        ({"features": 40, "length": 512}, None),
        ({"features": 64, "length": 100}, KEPT),
        ({"features": 20, "unroll": 2}, None),
        ({"features": 20, **GATED, "unroll": 2}, None),
        ({"features": 20, "may_keep": False}, MADE_AGAIN),
        ({"features": 20, **GATED, "may_keep": False}, None),
        ({"features": 20, **GATED, "may_keep": False, "length": 512}, KEPT),
        ({"features": 28, **GATED, "may_keep": False}, KEPT),
        ({"features": 32, "leaves": 2, **GATED, "may_keep": False}, KEPT),
        ({"features": 64, **GATED, "may_keep": False, "length": 10000}, MADE_AGAIN),
        ({"features": 20, "linearisation": "matrix-free", "may_keep": False}, None),
    ],
)
def test_a_row_of_a_cell_that_is_not_unrolled_is_swept_since_jax_0_12_too(changes, solver):
    layer = dataclasses.replace(RNN, **ONE_ROW, may_keep=True)
    assert choose(dataclasses.replace(layer, **changes)).solver == solver


@pytest.mark.parametrize("version", [(0, 10), (0, 12)])
@pytest.mark.parametrize(
    ("changes", "solver"),
    [
        ({"batch": 1, "features": 4}, pb.Sweep(chunk=1)),
        ({"batch": 4, "features": 1}, pb.Sweep(chunk=1)),
        ({"batch": 1, "features": 1}, pb.Sweep(chunk=4, unroll=4)),
        ({"batch": 1, "features": 1, "equations": 9}, None),
        ({"batch": 1, "features": 2, "leaves": 2, "equations": 14}, STEP_BY_STEP),
        ({"batch": 1, "features": 4, **OWN_TINY}, STEP_BY_STEP),
        ({"batch": 4, "features": 1, **OWN_TINY, "touched": 1025, "length": 80}, None),
        ({"batch": 1, "features": 4, **OWN_TINY, "length": 30}, None),
        ({"batch": 1, "features": 4, "linearisation": "columns"}, None),
    ],
)
def test_tiny_steps_are_swept_one_by_one(changes, solver, version):
    changes = {"equations": 6, "length": 100, "jax_version": version, **changes}
    assert choose(dataclasses.replace(RNN, **changes)).solver == solver


def test_a_tiny_carry_of_a_large_step_is_no_tiny_step():
    own = dataclasses.replace(RNN, batch=1, features=4, **OWN_TINY)
    assert choose(dataclasses.replace(own, touched=1024)).solver == STEP_BY_STEP
    assert choose(dataclasses.replace(own, touched=1025)).solver == pb.Sweep()


@pytest.mark.parametrize(
    ("changes", "work"),
    [
        ({}, Work(1, "contains lu")),
        ({}, Work(0, None, arithmetic=True)),
        ({"outputs": 1}, Work(1, None)),
    ],
)
def test_a_tiny_step_that_would_not_gain_is_left_to_lax_scan(changes, work):
    tiny = dataclasses.replace(RNN, batch=1, features=4, **OWN_TINY, **changes)
    assert choose(tiny, work).solver is None


@pytest.mark.parametrize("output", ["carry", "own"])
def test_a_tiny_pendulum_is_swept_unless_it_has_outputs_of_its_own(output):
    def step(c, torque):
        angle, speed = c
        speed = speed + 0.1 * (torque - jnp.sin(angle))
        angle = angle + 0.1 * speed
        return (angle, speed), angle if output == "carry" else jnp.cos(angle)

    choice = STEP_BY_STEP if output == "carry" else "lax.scan"
    assert pb.explain(step, (0.0, 0.0), jnp.ones(1000)).choice == str(choice)


def test_a_tiny_average_is_left_to_lax_scan():
    average = lambda c, x: (c := 0.9 * c + 0.1 * jnp.sin(x), c)  # noqa: E731
    assert pb.explain(average, 0.0, jnp.ones(1000)).choice == "lax.scan"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"platform": "gpu"}, "no rule is known for such a step on a gpu"),
        ({"platform": "gpu", "on_chip": True, "length": 4}, "on a gpu"),
        ({"platform": "gpu", "on_chip": True, "batch": 1}, "a single row"),
        ({"batch": 1, "features": 2, "equations": 12}, "single kernel"),
        ({"batch": 1, "features": 4, **OWN_TINY, "outputs": 1}, "single kernel"),
        ({"batch": 1, "features": 1, "equations": 60, "linearisation": "columns"}, "single kernel"),
        ({"features": 1, "linearisation": "matrix-free"}, "single kernel"),
        ({**ONE_ROW, "features": 32}, "from jax 0.12 on"),
        ({**ONE_ROW, "features": 100, "linearisation": "matrix-free"}, "from jax 0.12 on"),
        ({**ONE_FEATURE, "features": 2, "leaves": 2}, "from jax 0.12 on"),
        ({"length": 2, "features": 2}, "too short"),
    ],
)
def test_what_is_left_to_lax_scan(changes, word):
    choice = choose(dataclasses.replace(RNN, **changes))
    assert choice.solver is None
    assert str(choice) == "lax.scan"
    assert word in choice.reason
