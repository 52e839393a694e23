"""The path taken, read off the compiled program: loops, products, collectives, memory."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.linearise.linear_step import LinearStep
from parscan_bp.solvers.collect import chunk_bytes

H, INPUTS = 4, 3
SCANS = (pb.scan, lax.scan)


def _gradient(solver, n, batch=(), own=False, hidden=H, cell=None):
    """The gradient of an Elman scan's last state, by params and initial carry, lowered."""
    cell = cell or pb.cells.Elman()
    params = cell.init(jax.random.key(0), INPUTS, hidden, jnp.float32)

    def loss(params, h0, xs):
        step = (lambda c, x: cell(params, c, x)) if own else functools.partial(cell, params)
        return pb.scan(step, h0, xs, solver=solver)[0].sum()

    xs = jnp.ones((n, *batch, INPUTS), jnp.float32)
    args = params, cell.initial_carry(batch, hidden, jnp.float32), xs
    return jax.jit(jax.grad(loss, (0, 1))).lower(*args)


def _solve_text(solver, n):
    """The optimised program of a bare solve: nothing in it but the solver."""
    operators, g = pb.operators.Dense(jnp.ones((n, H, H))), jnp.ones((n + 1, H))
    run = jax.jit(lambda op, g: pb.solve(pb.Uniform(op, g), solver))
    return run.lower(operators, g).compile().as_text()


def _trip_counts(text):
    return [int(c) for c in re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', text)]


@pytest.mark.reads_compiled
@pytest.mark.parametrize("n", [64, 100])
@pytest.mark.parametrize("solver", [pb.Blelloch(), pb.Associative()])
def test_trees_have_no_loop_over_time(solver, n):
    text = _solve_text(solver, n)
    assert " while(" not in text
    assert f"{n}" in text


def test_a_step_is_linearised_once(monkeypatch):
    """Not for the shapes of a chunk, its length and what is left over again."""
    made = []
    counted = LinearStep.of
    monkeypatch.setattr(
        LinearStep, "of", lambda *args, **how: made.append(0) or counted(*args, **how)
    )

    def loss(xs):
        step = lambda c, x: (jnp.tanh(0.5 * c + x), c)  # noqa: E731
        return pb.scan(step, 0.0, xs, solver=pb.Sweep(chunk=3))[0]

    jax.jit(jax.grad(loss)).lower(jnp.ones(8))
    assert len(made) == 1


@pytest.mark.reads_compiled
def test_sweep_is_one_loop_over_time():
    assert _trip_counts(_solve_text(pb.Sweep(chunk=100), 100)) == [100]


@pytest.mark.parametrize("n", [7, 8, 9, 100])
def test_blelloch_keeps_its_bounds_in_the_program(n):
    """Matrix products and levels are counted in the jaxpr, where a batched product is one."""
    operators, g = pb.operators.Dense(jnp.ones((n, H, H))), jnp.ones((n + 1, H))
    jaxpr = jax.make_jaxpr(lambda op, g: pb.Blelloch().states(op, g[1:], g[0]))(operators, g)
    matrix, levels = 0, 0
    for eqn in _equations(jaxpr.jaxpr):
        if eqn.primitive.name != "dot_general":
            continue
        _, (batch, _) = eqn.params["dimension_numbers"]
        shapes = [v.aval.shape for v in eqn.invars]
        if all(len(s) - len(batch) == 2 for s in shapes):
            matrix += math.prod(shapes[0][a] for a in batch)
            levels += 1
    assert 0 < matrix <= n
    assert matrix == pb.Blelloch().complexity(n).matrix_products
    assert levels <= math.ceil(math.log2(n + 1)) - 1
    # One more step than the paper's levels: lambda_0, which Algorithm 1 leaves out.
    assert pb.Blelloch().complexity(n).steps <= 2 * math.ceil(math.log2(n + 1))


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from _equations(inner)


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Chunked()])
def test_program_size_does_not_grow_with_length(solver):
    sizes = [len(_gradient(solver, n).as_text()) for n in (2**18, 2**20)]
    assert abs(sizes[1] - sizes[0]) < 0.02 * sizes[0]


@pytest.mark.reads_compiled
def test_a_batch_keeps_its_axis():
    """No transposition of the whole carry: the batch axis stays where the step has it."""
    text = _gradient(pb.Sweep(), 32, batch=(8,)).compile().as_text()
    assert f"f32[8,32,{H}]" not in text


@pytest.mark.reads_compiled
def test_weight_products_transpose_nothing():
    """Steps and rows are contracted as one axis, where XLA needs no transposed copy."""
    text = _gradient(pb.Sweep(), 32, batch=(8,)).compile().as_text()
    assert re.search(rf"f32\[{H},{H}\]\S* dot\(", text)
    assert not re.search(r"f32\[\d+,32,8\]\S* (copy|transpose)\(", text)


@pytest.mark.reads_compiled
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("batch", [(8,), (2, 3), (1,)])
def test_weights_are_transposed_ahead_of_the_loop_where_there_are_rows(batch, own):
    """XLA on CPU packs a matrix for each product with its transpose, of more than one row."""
    text = _gradient(pb.Sweep(), 32, batch, own=own, hidden=32).compile().as_text()
    rows = "|".join([",".join(map(str, batch)), str(math.prod(batch))])
    # Of one row, XLA (jaxlib 0.10.1) makes a product with a vector.
    products = re.findall(rf"f32\[(?:(?:{rows}),)?32\]\S* dot\(.*", text)
    assert len(products) > 1  # of the forward loop, and of the backward one
    by_columns = any("rhs_contracting_dims={1}" in line for line in products)
    assert by_columns == (math.prod(batch) == 1)


_SHARDED = """
import functools, re
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
import parscan_bp as pb
from tests.family import assert_derivatives_close

xs = jax.random.normal(jax.random.key(1), (12, 16, 3), jnp.float32)

def check(devices, cell, analytic, solver):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    params, h0 = cell.init(jax.random.key(0), 3, 4), cell.initial_carry((16,), 4)

    def loss(params, h0, xs):
        step = functools.partial(cell, params) if analytic else (lambda c, x: cell(params, c, x))
        return pb.scan(step, h0, xs, solver=solver)[1].sum()

    gradient = jax.jit(jax.grad(loss))
    sharded = put(params), put(h0, "data"), put(xs, None, "data")
    program = gradient.lower(*sharded).compile()
    found = re.findall(
        r" (all-[a-z]+|collective-[a-z]+|reduce-scatter)(?:-start)?\\(", program.as_text()
    )
    assert found == ["all-reduce"], (devices, cell, solver, found)
    assert_derivatives_close(program(*sharded), gradient(params, h0, xs), 2e-5)

for devices in (2, 8):
    check(devices, pb.cells.Elman(), True, None)
    check(devices, pb.cells.GRU(), False, pb.Sweep(chunk=4))
    check(devices, pb.cells.Elman(), True, pb.Blelloch())
"""


@pytest.mark.reads_compiled
def test_a_sharded_batch_needs_one_all_reduce(run_on_devices):
    run_on_devices(_SHARDED, 8)


@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Blelloch()])
@pytest.mark.parametrize("analytic", [True, False])
def test_a_pullback_keeps_inputs_and_carries_and_nothing_else(analytic, solver):
    cell, n = pb.cells.LSTM(), 50
    params = cell.init(jax.random.key(0), INPUTS, H)
    xs, carry = jnp.ones((n, INPUTS), jnp.float32), cell.initial_carry((), H)

    def last(params, xs):
        step = functools.partial(cell, params) if analytic else lambda c, x: cell(params, c, x)
        return pb.scan(step, carry, xs, solver=solver)[0]

    kept = jax.tree.leaves(jax.vjp(last, params, xs)[1])
    known = jax.tree.leaves((params, xs, carry))
    most = sum(a.size for a in known) + n * 2 * H
    assert sum(a.size for a in kept if a.ndim) <= most


def _temporary_bytes(scan, cell, hidden, batch, n, wrap=lambda step: step):
    """Scratch memory of value and gradient by the parameters."""
    params = cell.init(jax.random.key(0), hidden, hidden, jnp.float32)
    xs = jnp.ones((n, batch, hidden), jnp.float32)
    carry = cell.initial_carry((batch,), hidden, jnp.float32)

    def loss(params):
        return jnp.sum(scan(wrap(functools.partial(cell, params)), carry, xs)[1] ** 2)

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.reads_compiled
@pytest.mark.sampled(of=(pb.cells.LSTM(),))
@pytest.mark.parametrize("cell", [pb.cells.Elman(), pb.cells.GRU(), pb.cells.LSTM()])
def test_wide_weights_are_neither_transposed_nor_summed_in_many_parts(cell):
    """Where they are larger than all the carries, a copy of them would be most of the memory."""
    weight = cell.init(jax.random.key(0), 256, 256, jnp.float32)["wh"]
    ours, theirs = (_temporary_bytes(scan, cell, 256, 1, 100) for scan in SCANS)
    assert ours - theirs < weight.nbytes / 2


@pytest.mark.reads_compiled
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Associative()])
def test_no_zeros_are_made_for_what_nothing_reads(solver):
    """Where only the last carry is read, the cotangents of the others have no part from outside."""
    cell, (n, batch) = pb.cells.Elman(), (100, 3)
    params = cell.init(jax.random.key(0), INPUTS, H, jnp.float32)
    xs, carry = jnp.ones((n, batch, INPUTS), jnp.float32), jnp.zeros((batch, H), jnp.float32)

    def temporary_bytes(read):
        scan = lambda p: pb.scan(functools.partial(cell, p), carry, xs, solver=solver)  # noqa: E731
        gradient = jax.grad(lambda params: jnp.sum(scan(params)[read] ** 2))
        return jax.jit(gradient).lower(params).compile().memory_analysis().temp_size_in_bytes

    last, ys = (temporary_bytes(read) for read in (0, 1))
    assert last <= ys - n * carry.nbytes


@pytest.mark.reads_compiled
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Sweep(recompute=False), pb.Blelloch()])
def test_an_output_that_nothing_reads_is_not_differentiated(solver):
    def step(h, x):
        h = jnp.tanh(0.5 * h + x)
        return h, jnp.log1p(jnp.exp(h))

    def functions(f):
        gradient = jax.jit(jax.grad(f)).lower(jnp.ones((100, 3), jnp.float32))
        text = gradient.compile().as_text()
        return sum(text.count(f" {name}(") for name in ("log-plus-one", "exponential"))

    scan = functools.partial(pb.scan, step, jnp.zeros(3, jnp.float32), solver=solver)
    assert functions(lambda xs: scan(xs)[0].sum()) == 0
    assert functions(lambda xs: scan(xs)[1].sum()) > 0


GATED = (pb.cells.GRU(), pb.cells.LSTM())
SMALL = [
    *((cell, *size) for cell in GATED for size in [(20, 1, 100), (4, 1, 100)]),
    *(
        (cell, *size)
        for cell in (pb.cells.Elman(), *GATED)
        for size in [(20, 16, 100), (20, 1, 1000), (4, 1, 10000)]
    ),
]


@pytest.mark.reads_compiled
@pytest.mark.sampled
@pytest.mark.parametrize(("cell", "hidden", "batch", "n"), SMALL)
def test_small_scans_take_little_memory(cell, hidden, batch, n):
    """At most as much as `lax.scan` takes, and twice what it takes with a checkpointed step.

    But for the least chunk, and what stands beside its steps.
    """
    checkpoint = functools.partial(jax.checkpoint, prevent_cse=False)
    swept = functools.partial(pb.scan, solver=pb.Sweep())
    ours = _temporary_bytes(swept, cell, hidden, batch, n)
    beside = 3 * chunk_bytes()[0]
    assert ours <= 1.1 * _temporary_bytes(lax.scan, cell, hidden, batch, n) + beside
    checkpointed = _temporary_bytes(lax.scan, cell, hidden, batch, n, checkpoint)
    assert ours <= 2 * checkpointed + beside


@pytest.mark.reads_compiled
@pytest.mark.parametrize("hidden", [1, 2, 4])
def test_the_sweep_of_a_tiny_cell_is_one_kernel_of_less_memory(hidden):
    """XLA on CPU calls a loop that it compiles into a single kernel."""
    text = _gradient(None, 1000, (1,), hidden=hidden).compile().as_text()
    assert len(re.findall(r" call\(.*xla_cpu_small_call", text)) == 2
    assert _trip_counts(text) == [1000, 1000]
    ours, theirs = (_temporary_bytes(s, pb.cells.Elman(), hidden, 1, 1000) for s in SCANS)
    assert ours < 0.85 * theirs


def test_values_under_differentiation_are_those_of_lax_scan():
    cell = pb.cells.GRU()
    params = cell.init(jax.random.key(0), INPUTS, H)
    xs = jax.random.normal(jax.random.key(1), (50, INPUTS), jnp.float32)

    def value(scan):
        def loss(params):
            ys = scan(lambda c, x: cell(params, c, x), cell.initial_carry((), H), xs)[1]
            return ys.sum(), ys

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)[0][1]

    assert (value(pb.scan) == value(lax.scan)).all()
