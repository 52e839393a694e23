"""Every legal (solver, structure) pair against the dense float64 oracle; the others raise."""

import dataclasses
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import (
    Banded,
    BlockDiagonal,
    BlockSparse,
    BlockTriangular,
    ChannelDense,
    ChannelSlice,
    Convolution,
    Dense,
    Diagonal,
    Factored,
    Identity,
    LowRankUpdate,
    MatrixFree,
    Operator,
    Product,
    Selection,
    Sparse,
    Sum,
    to_scaled,
)
from parscan_bp.sparsity import Pattern
from tests.family import jit_once
from tests.solvers.solver_table import DTYPE, SOLVERS

H = 4
UNIFORM = [name for name, solver in SOLVERS.items() if solver.uniform]
RAGGED = [name for name, solver in SOLVERS.items() if solver.ragged]


def _draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), DTYPE)


def _orthogonal_ish(n, batch=()):
    """Non-commuting matrices of norm about one: long products neither vanish nor explode."""
    a = np.random.default_rng(n).normal(size=(n, *batch, H, H))
    q = np.linalg.qr(a)[0]
    return jnp.asarray(q, DTYPE)


def _matrix_free(n):
    j = _orthogonal_ish(n)
    one = jax.linearize(lambda v: j[0] @ v, jnp.zeros(H, DTYPE))[1]
    assert len(jax.tree.leaves(one)) == 1
    linear = jax.tree.unflatten(jax.tree.structure(one), [j])
    return MatrixFree(linear, True, jnp.zeros(H, DTYPE))


FULL = Pattern.from_mask(np.ones((H, H)))


def _selection(n):
    source = np.random.default_rng(n).permuted(np.tile(np.arange(H), (n, 1)), axis=1)
    weight = 1 + 0.1 * _draw(n, n, H, 1)
    return Selection(jnp.asarray(source[..., None], jnp.int32), weight, FULL)


STRUCTURES = {
    "dense": lambda n: Dense(_orthogonal_ish(n)),
    "diagonal": lambda n: Diagonal(jnp.sign(_draw(n, n, H)) * (1 + 0.1 * _draw(n + 1, n, H))),
    "block_diagonal": lambda n: BlockDiagonal(_orthogonal_ish(n)[:, None, :2, :2].repeat(2, 1)),
    "identity": lambda n: None,
    "factored": lambda n: Factored.from_diagonal(_orthogonal_ish(1)[0], 1 + 0.1 * _draw(n, n, H)),
    "gated": lambda n: Factored(
        0.3 * _draw(1, 2, 6), _draw(n, n, 3, 2, 2), 0.3 * _draw(n + 1, n, 2, 2, 2)
    ),
    "product": lambda n: Product((Dense(_orthogonal_ish(n)), Diagonal(1 + 0.1 * _draw(n, n, H)))),
    "scaled": lambda n: to_scaled(Dense(_orthogonal_ish(n))),
    "matrix_free": _matrix_free,
    "sparse": lambda n: Sparse(_orthogonal_ish(n).reshape(n, H * H), FULL),
    "channel_dense": lambda n: ChannelDense(
        _orthogonal_ish(n)[:, None, :2, :2].repeat(2, 1),
        Pattern.from_coordinates([0, 1], [1, 0], (2, 2)),
    ),
    "selection": _selection,
    "banded": lambda n: Banded(0.5 * _draw(n, n, 3, H), 1),
    "convolution": lambda n: Convolution(
        0.4 * _draw(n, n, 3, 2, 2), (2,), padding=((1, 1),)
    ).transpose(),
    "low_rank": lambda n: LowRankUpdate(
        1 + 0.1 * _draw(n, n, 2, 2), 0.3 * _draw(n + 1, n, 2, 2, 1), 0.3 * _draw(1, 2, 2, 1)
    ),
    "block_triangular": lambda n: BlockTriangular(0.6 * _draw(n, n, 3, 2, 2)),
    "sum": lambda n: Sum((Identity(H, DTYPE), Diagonal(0.1 * _draw(n, n, H)))),
}


def _oracle(operators, g):
    """lambda by substitution in float64, which is what the dense system's solution is."""
    a = np.asarray(operators.as_dense(), np.float64)
    a = np.broadcast_to(a, (len(g) - 1, *a.shape[1:]))
    out = [np.asarray(g[-1], np.float64)]
    for t in reversed(range(len(g) - 1)):
        out.append(np.asarray(g[t], np.float64) + np.einsum("...ij,...j->...i", a[t], out[-1]))
    return np.stack(out[::-1])


def _solve(system, *solvers):
    """By each solver, all in one program."""
    kind = type(system)
    run = jit_once(lambda a, g: [pb.solve(kind(a, g), solver) for solver in solvers])
    return run(system.operators, system.g)


def _close(got, want, n, name=""):
    scale, atol = np.abs(want).max(), 30 * float(jnp.finfo(DTYPE).eps) * n
    got = np.asarray(got)
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=atol, err_msg=name)


# Every length is another program: one for each structure by default, more for the densest.
QUICK = {"dense": (1, 3, 8, 100), "scaled": (8,)}


def _lengths():
    for structure, n in itertools.product(STRUCTURES, (1, 2, 3, 7, 8, 9, 100, 1000)):
        if structure != "identity":
            marks = () if n in QUICK.get(structure, (8,)) else pytest.mark.slow
            yield pytest.param(structure, n, marks=marks)


@pytest.mark.parametrize(("structure", "n"), list(_lengths()))
def test_every_solver_equals_the_oracle(structure, n):
    operators = STRUCTURES[structure](n)
    g = _draw(n + 7, n + 1, H)
    want = _oracle(operators, g)
    system = pb.Uniform(operators, g)
    refused = {
        name: solver
        for name, solver in SOLVERS.items()
        if not solver.uniform or (solver.needs == "operators" and structure == "matrix_free")
    }
    for solver in refused.values():
        with pytest.raises(NotImplementedError, match=r"cannot take|ragged systems only"):
            pb.solve(system, solver)
    taken = [name for name in SOLVERS if name not in refused]
    each = _solve(system, *(SOLVERS[name] for name in taken))
    for name, got in zip(taken, each, strict=True):
        assert got.dtype == DTYPE, name
        if name != "bicgstab" or n <= 100:
            _close(got, want, (n + 1) * (10 if name == "bicgstab" else 1), name)


def test_the_dense_form_is_the_system():
    system = pb.Uniform(Dense(_orthogonal_ish(5)), _draw(0, 6, H))
    lam = np.linalg.solve(system.as_dense(), np.asarray(system.g).ravel())
    _close(pb.solve(system).ravel(), lam, 6)


def test_batch_axes_stay_behind_the_scanned_one():
    operators, g = Dense(_orthogonal_ish(9, (3, 2))), _draw(1, 10, 3, 2, H)
    each = _solve(pb.Uniform(operators, g), *(SOLVERS[name] for name in UNIFORM))
    for name, got in zip(UNIFORM, each, strict=True):
        _close(got, _oracle(operators, g), 10, name)


@pytest.mark.parametrize("sizes", [(3, 2), (2, 5, 3), (3, 1, 4, 2, 5), tuple(range(1, 12))])
def test_ragged_systems(sizes):
    pairs = list(itertools.pairwise(sizes))
    operators = [Dense(_draw(k, a, b)) for k, (a, b) in enumerate(pairs)]
    g = [_draw(k + 50, s) for k, s in enumerate(sizes)]
    system = pb.Ragged(operators, g)
    want = np.linalg.solve(np.asarray(system.as_dense(), np.float64), np.concatenate(g))
    for solver in SOLVERS.values():
        if not solver.ragged:
            with pytest.raises(NotImplementedError, match=r"uniform systems only|cannot take"):
                pb.solve(system, solver)
    each = _solve(system, *(SOLVERS[name] for name in RAGGED))
    for name, got in zip(RAGGED, each, strict=True):
        _close(np.concatenate(got), want, 30 * len(sizes), name)


def test_square_ragged_systems_take_structured_operators():
    operators = [Diagonal(_draw(0, H)), Identity(H), Dense(_draw(1, H, H))]
    g = [_draw(k, H) for k in range(4)]
    system = pb.Ragged(operators, g)
    want = np.linalg.solve(np.asarray(system.as_dense(), np.float64), np.concatenate(g))
    for got in _solve(system, pb.Sweep(), pb.Blelloch(), pb.Blelloch(up_levels=1)):
        _close(np.concatenate(got), want, 30)


def _layers():
    """A small convolutional net, backwards: shapes that change, a structure of each kind."""
    line = Pattern.from_mask(sum(np.eye(8, k=k) for k in (-1, 0, 1)))
    halves = Pattern.from_coordinates(range(8), np.arange(8) // 2, (8, 4))
    source = jnp.asarray([[0, 1], [3, 2], [4, 5], [7, 7]], jnp.int32)
    corner = Pattern.from_mask(np.eye(4, 4, k=1) + np.eye(4, 4))
    return [
        Sparse(_draw(0, 8), Pattern.from_coordinates(range(8), 2 * np.arange(8), (8, 16))),
        Diagonal(_draw(1, 16)),
        ChannelDense(_draw(2, line.nnz, 2, 2), line),
        Diagonal(_draw(3, 16)),
        Selection(source, jnp.ones((4, 2), DTYPE), halves),
        ChannelDense(_draw(4, corner.nnz, 2, 1), corner),
        Banded(_draw(5, 2, 4), 1),
        Dense(_draw(6, 4, 3)),
    ]


def _cotangents(operators, batch=()):
    sizes = [operators[0].shape[0], *(a.shape[1] for a in operators)]
    return [_draw(k + 50, *batch, size) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("zero", [False, True], ids=["every-g", "last-g"])
def test_ragged_systems_of_every_structure(zero):
    operators = _layers()
    g = _cotangents(operators)
    dense = [np.zeros_like(v) for v in g[:-1]] if zero else g[:-1]
    given = [None] * len(g[:-1]) if zero else g[:-1]
    system = pb.Ragged(operators, [*given, g[-1]])
    want = np.linalg.solve(
        np.asarray(system.as_dense(), np.float64), np.concatenate([*dense, g[-1]])
    )
    each = _solve(system, *(SOLVERS[name] for name in RAGGED))
    for name, got in zip(RAGGED, each, strict=True):
        _close(np.concatenate(got), want, 100, name)


def _public(package, base):
    """The concrete classes of a kind that a package exports."""
    found = {getattr(package, name) for name in package.__all__}
    kinds = {c for c in found if isinstance(c, type) and issubclass(c, base)}
    return {c for c in kinds if not inspect.isabstract(c)}


def test_the_tables_are_complete():
    # `Sharded` wants a mesh, and has its own tests.
    tried = {type(s) for s in SOLVERS.values()} | {pb.Sharded}
    assert tried == _public(pb, pb.solvers.Solver)
    assert all(s.needs in ("operators", "products") for s in SOLVERS.values())
    made = {type(make(2)) for name, make in STRUCTURES.items() if name != "identity"}
    # Those of the live sets of a graph, of which a chain is made, have their tests there.
    assert made | {Identity, BlockSparse, ChannelSlice} == _public(pb.operators, Operator)


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        (lambda: pb.Sweep(8), pb.Sweep(chunk=8)),
        (lambda: pb.Chunked(8), pb.Chunked(chunks=8)),
        (lambda: pb.ChunkedCorrections(8), pb.ChunkedCorrections(chunks=8)),
        (lambda: pb.Blelloch(2), pb.Blelloch(up_levels=2)),
        (lambda: pb.Pallas("sequential"), pb.Pallas(mode="sequential")),
        (lambda: pb.Planned(3), pb.Planned(workers=3)),
    ],
)
def test_an_option_without_its_name_is_the_main_one(positional, named):
    assert positional() == named
    with pytest.raises(TypeError, match="positional arguments"):
        type(named)(1, 2)


def test_a_tree_without_options_of_its_own_takes_none_without_a_name():
    with pytest.raises(TypeError, match="positional argument"):
        pb.Associative(2**20)


def test_limits_are_those_of_solvers_that_have_one():
    assert pb.Sweep(3).with_memory_limit(9) == pb.Sweep(3)
    for solver in (pb.Chunked(3), pb.Planned(3)):
        assert solver.with_memory_limit(9) == dataclasses.replace(solver, memory_limit=9)


def test_what_a_sweep_leaves_to_lax():
    assert not pb.Sweep().leaves_to_lax and pb.Sweep(otherwise="lax").leaves_to_lax
    assert repr(pb.Sweep(2, otherwise="lax")) == "Sweep(chunk=2, otherwise='lax')"
    with pytest.raises(ValueError, match=r"otherwise: got 'scan'; 'refuse' or 'lax' is wanted"):
        pb.Sweep(otherwise="scan")


def test_the_tree_of_the_chunk_maps():
    assert pb.Chunked(8).inner == pb.Blelloch()
    swept = pb.Chunked(8, inner=pb.Blelloch(0)).complexity(64)
    assert (swept.matrix_products, swept.steps) == (8 * 7, 7 + 8 + 8)
    with pytest.raises(
        TypeError, match=r"inner: got .*Sweep.*; a tree, as Blelloch\(\), is wanted"
    ):
        pb.Chunked(inner=pb.Sweep())


def test_the_last_cotangent_is_wanted():
    with pytest.raises(ValueError, match=r"g\[1\]: got None"):
        pb.Ragged([Dense(jnp.ones((2, 2)))], [jnp.ones(2), None])
    with pytest.raises(
        ValueError, match=r"operators\[0\]: got 2x2, .*operators\[1\] has 3 rows: 2x3"
    ):
        pb.Ragged([Dense(jnp.ones((2, 2))), Dense(jnp.ones((3, 2)))], [None, None, jnp.ones(2)])


@pytest.mark.parametrize(
    "solver",
    [SOLVERS[name] for name in UNIFORM if hasattr(SOLVERS[name], "scaled") and name != "pallas"],
)
def test_memory_limit_refuses_before_running(solver):
    tight = solver.with_memory_limit(1000)
    with pytest.raises(ValueError, match="memory_limit"):
        jax.eval_shape(
            lambda: pb.solve(pb.Uniform(Dense(jnp.ones((64, H, H))), jnp.ones((65, H))), tight)
        )


def test_mistakes_in_a_system_are_named():
    with pytest.raises(ValueError, match=r"g: got shape \(3, 4\)"):
        pb.Uniform(Dense(jnp.ones((3, H, H))), jnp.ones((3, H)))
    with pytest.raises(ValueError, match="square"):
        pb.Uniform(Dense(jnp.ones((3, H, 2))), jnp.ones((4, 2)))
    with pytest.raises(ValueError, match="shared"):
        pb.Uniform(Dense(jnp.ones((H, H))), jnp.ones((4, H)))
    with pytest.raises(ValueError, match=r"operators\[1\]: got 2x3, but g\[1\] has 2 entries and"):
        ops = [Dense(jnp.ones((3, 2))), Dense(jnp.ones((2, 3)))]
        pb.Ragged(ops, [jnp.ones(3), jnp.ones(2), jnp.ones(4)])
    with pytest.raises(ValueError, match="2 cotangents for 3 operators"):
        pb.Ragged([Dense(jnp.ones((1, 1)))] * 3, [jnp.ones(1)] * 2)
    with pytest.raises(TypeError, match="Uniform or Ragged"):
        pb.solve(jnp.ones(3))


@pytest.mark.parametrize("scaled", [False, True])
def test_scaled_products_survive_where_plain_ones_overflow(scaled):
    """Entries of 1e20 and 1e-20 by turns of two: products of four overflow, answers are tame."""
    d = jnp.asarray([1e-20, 1e-20, 1e20, 1e20] * 8, jnp.float32)[:, None] * jnp.ones(2, jnp.float32)
    g = jnp.zeros((33, 2), jnp.float32).at[-1].set(1e-30)
    solver = pb.Blelloch(scaled=scaled)
    lam = np.asarray(_solve(pb.Uniform(Diagonal(d), g), solver)[0])
    want = _oracle(Diagonal(d), g)
    finite = np.isfinite(want.astype(np.float32)) & (np.abs(want) > 1e-37)
    agree = np.isclose(lam[finite], want[finite], rtol=1e-4).all()
    assert agree == scaled


@pytest.mark.parametrize("bad", [0, -3])
def test_solver_options_are_checked(bad):
    for make in (
        lambda: pb.Sweep(chunk=bad),
        lambda: pb.Sweep(unroll=bad),
        lambda: pb.Chunked(chunks=bad),
        lambda: pb.Associative(memory_limit=bad),
    ):
        with pytest.raises(ValueError, match="at least 1"):
            make()
    with pytest.raises(ValueError, match="up_levels"):
        pb.Blelloch(up_levels=-1)
    with pytest.raises(TypeError, match="chunk"):
        pb.Sweep(chunk=2.5)


def test_integers_and_numpy_arrays_beside_floats_become_what_the_solution_is():
    """As `Uniform` has one dtype; and a report judges floats."""
    for last in (jnp.array([1, 2]), np.array([1, 2]), np.array([1.0, 2.0], np.float32)):
        system = pb.Ragged([Dense(jnp.ones((3, 2), DTYPE))], [None, last])
        for solver in (pb.Sweep(), pb.Planned(), pb.Blelloch()):
            solution, report = pb.solve(system, solver, report=True)
            assert [v.tolist() for v in solution] == [[3.0] * 3, [1.0, 2.0]]
            assert all(isinstance(v, jax.Array) for v in solution)
            assert report.status == pb.Status.OK
