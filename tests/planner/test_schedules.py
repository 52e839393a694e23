"""Schedules compute what they say, and the search finds the best of all."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Convolution, Dense, Diagonal, MatrixFree, Product, Selection
from parscan_bp.planner import (
    CPU,
    FLOPS,
    ChainProblem,
    ProductOrder,
    blelloch,
    linear,
    plan,
    run_order,
)
from parscan_bp.planner.outlook import outlook, steps
from parscan_bp.planner.table import ProductTable
from parscan_bp.sparsity import Pattern


def chain_of(sizes, given=None):
    """Dense operators of small integers, whose products are exact, and right-hand sides."""
    rng = np.random.default_rng(len(sizes))
    draw = lambda *shape: rng.integers(-2, 3, shape).astype(np.float32)  # noqa: E731
    operators = [Dense(draw(m, n)) for m, n in itertools.pairwise(sizes)]
    given = range(len(sizes)) if given is None else [*given, len(sizes) - 1]
    return operators, [draw(m) if t in given else None for t, m in enumerate(sizes)]


def swept(operators, g):
    out = [np.asarray(g[-1])]
    for a, v in zip(reversed(operators), reversed(g[:-1]), strict=True):
        pushed = np.asarray(a.matrix) @ out[-1]
        out.append(pushed if v is None else v + pushed)
    return out[::-1]


@pytest.mark.parametrize("given", [None, (), (2, 3)], ids=["all", "last", "some"])
@pytest.mark.parametrize("levels", [0, 1, 2, None])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9, 12])
def test_truncations_of_algorithm_1(n, levels, given):
    operators, g = chain_of([2 + k % 3 for k in range(n + 1)], given)
    schedule = blelloch(n, levels)
    for got, want in zip(run_order(schedule, operators, g), swept(operators, g), strict=True):
        np.testing.assert_array_equal(got, want)
    count = pb.Blelloch(up_levels=levels).complexity(n)
    assert len(schedule.products) == count.matrix_products
    assert len(schedule.pushes) == n


def test_only_what_is_wanted():
    operators, g = chain_of([3] * 9)
    for wanted in ([0], [3], [2, 5], []):
        schedule = blelloch(8).only(wanted)
        out = run_order(schedule, operators, g)
        for t in wanted:
            np.testing.assert_array_equal(out[t], swept(operators, g)[t])
        assert len(schedule.pushes) <= 8 and all(out[t] is not None for t in wanted)
    assert linear(8).only([5]).pushes == (7, 6, 5)


def trees(i, j):
    """Every way to multiply A_i ... A_{j-1}."""
    if j - i == 1:
        return [i]
    return [(left, right) for k in range(i + 1, j) for left in trees(i, k) for right in trees(k, j)]


def every_schedule(n):
    each = [[t for j in range(i + 1, n + 1) for t in trees(i, j)] for i in range(n)]
    for pushes in itertools.product(*reversed(each)):
        yield ProductOrder(n, pushes)


@functools.cache
def all_outlooks(sizes, wanted, workers):
    operators, g = chain_of(sizes, ())
    table = ProductTable(ChainProblem.of(operators, g, wanted), FLOPS)
    found = {s.only(wanted) for s in every_schedule(len(sizes) - 1)}
    return [outlook(s, steps(s, table), table, workers) for s in found]


CHAINS = [(1, 9, 1, 9, 1), (9, 8, 2, 8, 9), (2, 9, 9, 3, 1), (5, 5, 5, 5, 5), (1, 7, 2, 6, 9)]


def planned(sizes, wanted, workers, limit=None):
    operators, g = chain_of(sizes, ())
    return plan(ChainProblem.of(operators, g, wanted), FLOPS, workers, limit)


@pytest.mark.parametrize("sizes", CHAINS)
def test_one_worker_and_one_vector_take_the_least_work_of_all(sizes):
    best = min(it.flops for it in all_outlooks(sizes, (0,), 1))
    got = planned(sizes, (0,), 1).outlook
    assert got.flops == got.seconds == best


@pytest.mark.parametrize("sizes", CHAINS)
def test_many_workers_end_as_early_as_any_schedule(sizes):
    everything = tuple(range(len(sizes) - 1))
    best = min(it.seconds for it in all_outlooks(sizes, everything, 100))
    assert planned(sizes, everything, 100).outlook.seconds == best


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("sizes", CHAINS)
def test_no_schedule_with_a_name_is_better(sizes, workers):
    made = planned(sizes, range(len(sizes) - 1), workers)
    assert made.outlook.seconds <= min(it.seconds for it in made.baselines.values())
    best = min(it.seconds for it in all_outlooks(sizes, tuple(range(len(sizes) - 1)), workers))
    assert best <= made.outlook.seconds


def test_makespans_of_list_scheduling():
    """Two products of 2 * 4^3 flops side by side, then a push of 2 * 4^2; one worker in turn."""
    operators, g = chain_of([4] * 5, ())
    table = ProductTable(ChainProblem.of(operators, g, [0]), FLOPS)
    schedule = ProductOrder(4, ((2, 3), (0, 1)))
    found = steps(schedule, table)
    assert outlook(schedule, found, table, 1).seconds == 2 * 128 + 2 * 32
    assert outlook(schedule, found, table, 2).seconds == 128 + 2 * 32
    # Numbers of four operators, two products, and two vectors.
    assert outlook(schedule, found, table, 1).bytes == 4 * (4 * 16 + 2 * 16 + 2 * 4)


def test_vectors_on_the_way_are_counted():
    costs = [
        outlook(s, steps(s, table), table, 1).flops
        for given in ((), (1,))
        for table in [ProductTable(ChainProblem.of(*chain_of([4] * 3, given), [0]), FLOPS)]
        for s in [ProductOrder(2, ((0, 1),))]
    ]
    assert costs == [128 + 32, 128 + 32 + 32]


def small_net(machine, workers, limit=None):
    """A small VGG: convolution, ReLU, pooling, and three more convolutions, abstract."""
    floats = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    ops = []
    for size in (32, 16, 16, 16):
        kernel = floats((3, 8, 8))
        ops.append(Convolution(kernel, (size,), padding=((1, 1),), transposed=True))
        ops.append(Diagonal(floats((2, size * 8))))
        if size == 32:
            halves = Pattern.from_coordinates(np.arange(32), np.arange(32) // 2, (32, 16))
            source = jax.ShapeDtypeStruct((2, 16, 8), jnp.int32)
            ops.append(Selection(source, floats((2, 16, 8)), halves))
    g = [None] * len(ops) + [floats((2, 128))]
    return plan(ChainProblem.of(ops, g, [0, 1, 3, 4, 5, 6, 7, 8]), machine, workers, limit)


def convolutions_in(tree, operators):
    if isinstance(tree, int):
        return int(isinstance(operators[tree], Convolution))
    return sum(convolutions_in(part, operators) for part in tree)


def test_folds_what_is_elementwise_and_never_two_convolutions():
    for workers in (1, 2, 8):
        made = small_net(FLOPS, workers)
        operators = made.table.problem.operators
        assert all(convolutions_in(tree, operators) <= 1 for tree in made.schedule.products)
    assert any(convolutions_in(tree, operators) for tree in made.schedule.products)
    assert made.outlook.seconds < made.baselines["BP"].seconds


def test_on_a_cpu_convolutions_stay_implicit():
    made = small_net(CPU, 1)
    assert not made.unpacked
    operators = made.table.problem.operators
    assert not any(convolutions_in(tree, operators) for tree in made.schedule.products)


def test_the_memory_limit_is_kept_or_refused():
    free = small_net(FLOPS, 8)
    least = small_net(FLOPS, 1, free.baselines["BP"].bytes)
    assert least.outlook.bytes == free.baselines["BP"].bytes < free.outlook.bytes
    for limit in np.linspace(least.outlook.bytes, free.outlook.bytes, 5).astype(int):
        made = small_net(FLOPS, 8, int(limit))
        assert made.outlook.bytes <= limit
        assert free.outlook.seconds <= made.outlook.seconds <= least.outlook.seconds
    with pytest.raises(ValueError, match=r"memory_limit: no schedule of 9 operators fits into 9 "):
        small_net(FLOPS, 8, 9)


def test_plans_of_equal_shapes_are_made_once():
    assert small_net(CPU, 1) is small_net(CPU, 1)


def test_the_plan_prints_itself():
    text = str(small_net(FLOPS, 8))
    for word in ("costs in flops", "ChannelDense", "Selection", "BP", "linear", "Blelloch(1)"):
        assert word in text
    assert "costs in seconds" in str(small_net(CPU, 2).named("abcdefghi"))


def test_what_cannot_be_multiplied_is_pushed_through():
    jacobian = jax.linearize(lambda x: 2 * x, jnp.ones(3))[1]
    free = MatrixFree(jacobian, False, jnp.zeros(3)).transpose()
    square = Dense(jnp.ones((3, 3)))
    ops = [square, Product((square, square)), free, square]
    g = [None, None, None, None, jnp.ones(3)]
    made = pb.Planned(machine=FLOPS, workers=4).plan(pb.Ragged(ops, g))
    assert made.baselines["Blelloch()"] is None and "cannot be made" in str(made)
    got = pb.solve(pb.Ragged(ops, g), pb.Planned(machine=FLOPS, workers=4))
    assert [float(v[0]) for v in got] == [3 * 9 * 2 * 3, 9 * 2 * 3, 2 * 3, 3, 1]


def test_a_collapsing_convolution_becomes_a_matrix():
    kernel = jax.ShapeDtypeStruct((3, 3, 512, 512), jnp.float32)
    one = Convolution(kernel, (2, 2), padding=((1, 1), (1, 1)), transposed=True)
    big = Convolution(kernel, (8, 8), padding=((1, 1), (1, 1)), transposed=True)
    for op, unpacked in ((one, (0,)), (big, ())):
        g = [None, jax.ShapeDtypeStruct((1, op.shape[1]), jnp.float32)]
        assert pb.Planned().plan(pb.Ragged([op], g)).unpacked == unpacked


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"memory_limit": 0}, {"memory_limit": -1}], ids=str
)
def test_numbers_have_to_be_positive(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        pb.Planned(**options)


def test_uniform_systems_are_refused():
    system = pb.Uniform(Dense(jnp.ones((2, 3, 3))), jnp.ones((3, 3)))
    with pytest.raises(NotImplementedError, match="Planned takes ragged systems only"):
        pb.solve(system, pb.Planned())
    with pytest.raises(NotImplementedError, match="ragged systems only"):
        pb.Planned().complexity(3)
