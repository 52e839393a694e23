"""The schedule that is drawn computes the answer, and the figures show what they were given."""

import dataclasses
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

import parscan_bp as pb
from parscan_bp import plots
from parscan_bp.operators import Dense, Diagonal
from parscan_bp.planner import FLOPS
from parscan_bp.solvers import Complexity, Solver

SOLVERS = {
    "sweep": pb.Sweep(),
    "blelloch": pb.Blelloch(),
    "up_levels_0": pb.Blelloch(up_levels=0),
    "up_levels_1": pb.Blelloch(up_levels=1),
    "chunks_1": pb.Chunked(chunks=1),
    "chunks_3": pb.Chunked(chunks=3),
    "chunks_64": pb.Chunked(),
    "associative": pb.Associative(),
    "inner": pb.Chunked(chunks=3, inner=pb.CyclicReduction()),
    "cyclic_reduction": pb.CyclicReduction(),
    "kernels_in_turn": pb.Pallas(mode="sequential"),
    "jacobi": pb.Jacobi(),
    "richardson": pb.Richardson(),
}
# Whose complexity counts what is dropped, left over or drawn in another way.
AT_MOST = {
    "kernels": pb.Pallas(mode="chunked", chunk=3),
    "kernels_of_blelloch": pb.Pallas(mode="blelloch"),
    "kernels_by_size": pb.Pallas(),
    "jacobi_until": pb.Jacobi(tol=1e-3),
    "corrections_of_1": pb.ChunkedCorrections(1),
}
EACH = pytest.mark.parametrize("solver", SOLVERS.values(), ids=list(SOLVERS))
SIZES = (4, 3, 5, 2, 6, 3, 1, 4)


def _evaluate(schedule, matrices, vectors):
    """Runs a schedule: the states it leads to, by the inputs' positions in the chain."""
    values = {}

    def value(node):
        if node not in values:
            assert not node.operands, "a product is used before it is made"
            values[node] = matrices[node.start] if node.kind == "matrix" else vectors.get(node.stop)
        return values[node]

    for node in schedule.products:
        first, *rest = (value(a) for a in node.operands)
        values[node] = rest[0] @ first if node.kind == "matrix" else first @ sum(rest)
    return [sum(value(node) for node in state) for state in schedule.states]


def _checked(solver, n, change=lambda matrices: matrices, drops=lambda k: False):
    """The schedule of a solver, whose states are those of the recurrence.

    Args:
      change: what becomes of random matrices.
      drops: whether the state after so many steps is not made of the one before.
    """
    rng = np.random.default_rng(n)
    matrices = change(rng.normal(size=(n, 3, 3)) / 2)
    vectors = {t: rng.normal(size=3) for t in range(n + 1)}
    schedule = plots.schedule_of(solver, n, features=3)
    wanted = [vectors[0]]
    for t in range(n):
        before = 0 * wanted[-1] if drops(t + 1) else wanted[-1]
        wanted.append(matrices[t] @ before + vectors[t + 1])
    np.testing.assert_allclose(_evaluate(schedule, matrices, vectors), wanted, rtol=0, atol=1e-12)
    return schedule


@EACH
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 23])
def test_a_schedule_computes_the_states_in_the_products_and_levels_of_its_solver(solver, n):
    schedule = _checked(solver, n)
    stated = solver.complexity(n)
    assert len(schedule.levels) == stated.steps
    assert schedule.matrix_products == stated.matrix_products
    assert schedule.vector_products == stated.vector_products
    assert {(node.kind, node.flops) for node in schedule.products} <= {
        ("matrix", 2 * 3**3),
        ("vector", 2 * 3**2),
    }


def _is_within(schedule, stated):
    """Whether it has no more than that."""
    return (
        len(schedule.levels) <= stated.steps
        and schedule.matrix_products <= stated.matrix_products
        and schedule.vector_products <= stated.vector_products
    )


@pytest.mark.parametrize("solver", AT_MOST.values(), ids=list(AT_MOST))
@pytest.mark.parametrize("n", [1, 2, 3, 8, 23])
def test_a_schedule_leaves_out_what_its_solver_drops(solver, n):
    assert _is_within(_checked(solver, n), solver.complexity(n))


@pytest.mark.parametrize("n", [1, 5, 8])
def test_truncated_windows_are_counted_from_the_first_step(n):
    solver = pb.Truncated(3)
    schedule = _checked(solver, n, drops=lambda k: k < n and (n - k) % 3 == 0)
    assert _is_within(schedule, solver.complexity(n))
    sliding = plots.schedule_of(pb.Truncated(3, sliding=True), n)
    assert len(sliding.levels) == pb.Truncated(3, sliding=True).complexity(n).steps


@pytest.mark.parametrize("n", [7, 9, 12])
def test_corrections_are_those_of_one_round_which_is_all_where_chunks_forget(n):
    solver = pb.ChunkedCorrections(3)
    forgets = lambda matrices: np.triu(matrices, 1) if n > 8 else matrices * 0  # noqa: E731
    schedule, stated = _checked(solver, n, forgets), solver.complexity(n)
    assert len(schedule.levels) == stated.steps and schedule.matrix_products == 0
    assert schedule.vector_products == stated.vector_products


SHARDED = {
    "doubling": {},
    "of_trees": {"inner": pb.Blelloch()},
    "chain": {"method": "chain", "inner": pb.CyclicReduction()},
    "turns": {"method": "turns", "inner": pb.Blelloch()},
    "corrections": {"method": "corrections"},
}


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("n", [3, 12, 14])
def test_the_schedule_of_several_devices(name, n, monkeypatch):
    solver = pb.Sharded("time", jax.make_mesh((1,), ("time",), devices=jax.devices()[:1]))
    solver = dataclasses.replace(solver, **SHARDED[name])
    for devices in (1, 4):
        monkeypatch.setattr(type(solver.place), "count", lambda *_, devices=devices: devices)
        # Three steps of a device forget all.
        schedule = _checked(solver, n, lambda matrices: np.triu(matrices, 1))
        assert len(schedule.levels) <= solver.complexity(n).steps + 1
        if name == "corrections":
            assert schedule.matrix_products == 0


def _system(given, sizes=SIZES):
    rng = np.random.default_rng(5)
    pairs = itertools.pairwise(sizes)
    operators = [Dense(jnp.asarray(rng.normal(size=pair), float)) for pair in pairs]
    cotangents = [jnp.asarray(rng.normal(size=size), float) for size in sizes]
    return pb.Ragged(operators, [g if t in given else None for t, g in enumerate(cotangents)])


LAYERED = [
    pb.Sweep(),
    pb.Blelloch(),
    pb.Blelloch(up_levels=1),
    pb.CyclicReduction(),
    pb.Jacobi(),
    pb.Planned(),
    pb.Planned(workers=9, machine=FLOPS),
    pb.ChunkedCorrections(1),
    pb.ChunkedCorrections(2),
]


@pytest.mark.parametrize("solver", LAYERED, ids=str)
@pytest.mark.parametrize("given", [{7}, {3, 7}, set(range(8))])
def test_the_schedule_of_a_ragged_system_solves_it(solver, given):
    system = _system(given)
    schedule = plots.schedule_of(solver, system)
    matrices = [np.asarray(a.as_dense()) for a in reversed(system.operators)]
    vectors = {t: np.asarray(g) for t, g in enumerate(reversed(system.g)) if g is not None}
    got = _evaluate(schedule, matrices, vectors)
    tolerance = 1e-10 if jax.config.jax_enable_x64 else 1e-4
    for ours, theirs in zip(got[::-1], pb.solve(system, solver), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_products_with_zeros_and_unused_products_are_left_out():
    last, all_ = (plots.schedule_of(pb.Blelloch(), _system(given)) for given in ({7}, range(8)))
    assert len(last.products) < len(all_.products)
    used = {node for state in last.states for node in state}
    used |= {operand for node in last.products for operand in node.operands}
    assert set(last.products) <= used


def test_flops_of_a_ragged_system_follow_structure_and_sizes():
    system = pb.Ragged(
        [Dense(jnp.ones((2, 3))), Diagonal(jnp.ones(3)), Dense(jnp.ones((3, 5)))],
        [None, None, None, jnp.ones(5)],
    )
    flops = [node.flops for node in plots.schedule_of(pb.Sweep(), system).products]
    assert flops == [2 * 3 * 5, 3, 2 * 2 * 3]


def test_the_critical_path_is_the_dearest_chain_of_products():
    schedule = plots.schedule_of(pb.Blelloch(), _system({7}))

    def dearest(node):
        return node.flops + max((dearest(a) for a in node.operands), default=0)

    path = schedule.critical_path()
    assert all(a in b.operands for a, b in itertools.pairwise(path))
    assert sum(node.flops for node in path) == max(map(dearest, schedule.products))


class Own(Solver):
    def run(self, system, state):
        raise NotImplementedError

    def complexity(self, n):
        return Complexity(n, 0, n, 1)


UNDRAWN = {
    "own": (Own(), NotImplementedError, r"no schedule is known for Own; .*record\.register"),
    "scaled": (pb.Richardson(0.5), NotImplementedError, r"Richardson\(omega=0.5\) scales what it"),
    "krylov": (pb.BiCGStab(), NotImplementedError, r"BiCGStab\(\) scales vectors by sums over all"),
    "layers": (pb.Planned(), NotImplementedError, r"chain: got 8 equal steps; Planned\(\) takes"),
    "none": (None, TypeError, r"solver: got None; a solver, such as Blelloch\(\), is wanted"),
    "name": ("sweep", TypeError, r"solver: got 'sweep', of type str; .* a solver, such as"),
    "class": (
        pb.Sweep,
        TypeError,
        r"solver: Sweep is a class; Sweep\(\) is wanted, or a solver, s",
    ),
}


@pytest.mark.parametrize("name", UNDRAWN)
def test_what_cannot_be_drawn_is_named(name):
    solver, error, words = UNDRAWN[name]
    with pytest.raises(error, match=words):
        plots.draw_schedule(solver, 8)


def test_layers_over_devices_are_explained_elsewhere():
    with pytest.raises(NotImplementedError, match=r"chain: got a Ragged system; .*explain_chain"):
        plots.schedule_of(pb.Sharded("time"), _system({7}))


@pytest.mark.parametrize(
    ("chain", "features", "error", "words"),
    [
        (0, 4, ValueError, "chain: got 0"),
        (2.5, 4, TypeError, "chain: got 2.5"),
        (4, 0, ValueError, "features: got 0"),
        (65, 4, ValueError, "chain: got 65 steps; at most 64"),
    ],
)
def test_mistakes_in_a_schedule(chain, features, error, words):
    with pytest.raises(error, match=words):
        plots.draw_schedule(pb.Sweep(), chain, features=features)


def test_a_named_solver_that_cannot_take_the_layers_raises():
    with pytest.raises(NotImplementedError, match="cannot take a ragged system"):
        plots.draw_schedule(pb.Chunked(), _system({7}))


@EACH
def test_a_drawing_has_a_mark_for_every_input_and_product(solver):
    figure = plots.draw_schedule(solver, 9)
    axes = figure.axes[0]
    marks = sum(len(c.get_offsets()) for c in axes.collections if isinstance(c, PathCollection))
    inputs = 9 + 10  # maps and vectors
    assert marks == len(plots.schedule_of(solver, 9).products) + inputs
    assert type(solver).__name__ in axes.get_title()
    figure.canvas.draw()


def test_loss_curves_are_what_was_given():
    figure = plots.draw_losses(
        {"a": [3.0, 2.0, 1.0], "b": [3.0, 1.0]}, {"a": [0.1, 0.2, 0.3], "b": [0.5, 1.0]}, smooth=2
    )
    lines = [line.get_xydata().tolist() for line in figure.axes[0].get_lines()]
    assert lines[0] == [[0.1, 3.0], [0.2, 2.0], [0.3, 1.0]]
    assert lines[1] == [[0.2, 2.5], [0.3, 1.5]]
    assert lines[3] == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("losses", "at", "words"),
    [
        ({}, None, "no runs"),
        ({"a": []}, None, "0 losses"),
        ({"a": [1.0]}, {"a": [1, 2]}, "2 places"),
        ({"a": [[1.0]]}, None, r"losses\['a'\]: got shape \(1, 1\); the loss of every iteration"),
        ({"a": [1.0]}, {"b": [1]}, r"at: got \['b'\]; the places of each run, of \['a'\], are"),
    ],
)
def test_mistakes_in_losses(losses, at, words):
    with pytest.raises(ValueError, match=words):
        plots.draw_losses(losses, at)


@pytest.mark.parametrize(
    ("losses", "options", "words"),
    [
        ([3.0, 2.0], {}, r"losses: got \[3.0, 2.0\], of type list; a mapping .*\{'run': losses\}"),
        (3.0, {}, "losses: got 3.0, of type float; a mapping"),
        ({"a": "no"}, {}, r"losses\['a'\]: got 'no', of type str; numbers"),
        ({"a": [1.0]}, {"at": [1]}, r"at: got \[1\], of type list; a mapping"),
        ({"a": [1.0]}, {"smooth": 1.5}, "smooth: got 1.5, of type float; an int"),
    ],
)
def test_losses_that_are_none(losses, options, words):
    with pytest.raises(TypeError, match=words):
        plots.draw_losses(losses, **options)


def test_speedups_show_numbers_frames_and_what_is_missing():
    ratios = np.array([[2.0, math.nan], [0.25, -1.0]])
    figure = plots.draw_speedups(
        {"one": ratios, "two": ratios}, ["r", "s"], ["c", "d"], boxed={"two": ratios < 1}
    )
    one, two = figure.axes[:2]
    assert [t.get_text() for t in one.texts] == ["2", "0.25"]
    assert (len(one.patches), len(two.patches)) == (0, 2)
    assert np.ma.getmaskarray(one.images[0].get_array()).tolist() == [[False, True], [False, True]]


def test_the_fastest_and_its_margin():
    nan = math.nan
    times = {"a": np.array([[1.0, 6.0, nan]]), "b": np.array([[3.0, 2.0, 1.0]])}
    figure = plots.draw_fastest({"p": times}, ["r"], ["c", "d", "e"])
    shown = np.ma.filled(figure.axes[0].images[0].get_array().astype(float), -1.0)
    assert shown.tolist() == [[0.0, 1.0, -1.0]]
    assert [t.get_text() for t in figure.axes[0].texts] == ["3.0x", "3.0x"]


def test_mistakes_in_maps():
    for call, words in (
        (lambda: plots.draw_cotangents(3), "diagnosis: got 3, of type int; a Diagnosis is wanted"),
        (
            lambda: plots.draw_speedups([[1.0]], ["r"], ["c"]),
            r"ratios: got .*list; a mapping",
        ),
        (lambda: plots.draw_speedups({"p": [[1.0]]}, 1, ["c"]), "rows: got 1, of type int; a seq"),
        (lambda: plots.draw_fastest([[1.0]], ["r"], ["c"]), "times: got .*name of each panel is"),
        (
            lambda: plots.draw_fastest({"p": [[1.0]]}, ["r"], ["c"]),
            r"\['p'\]: .*each competitor",
        ),
        (lambda: plots.new_figure("a", 2), "width: got 'a', of type str; a number"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(ValueError, match="no panels"):
        plots.draw_speedups({}, [], [])
    with pytest.raises(ValueError, match=r"got shape \(1, 2\); 2 rows and 2 columns"):
        plots.draw_speedups({"p": np.ones((1, 2))}, ["r", "s"], ["c", "d"])
    many = {str(k): np.ones((1, 1)) for k in range(8)}
    with pytest.raises(ValueError, match="8 competitors"):
        plots.draw_fastest({"p": many}, ["r"], ["c"])


def test_no_global_state():
    assert isinstance(plots.draw_schedule(pb.Sweep(), 3), Figure)
    assert not pyplot.get_fignums()


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("parscan_bp.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'parscan_bp\[plots\]'"):
        import parscan_bp.plots  # noqa: F401


def test_the_drawing_of_cotangents_shows_their_norms_faults_and_memory():
    fault = pb.diagnose(lambda h, x: (0.5 * h / x, None), 8.0, jnp.array([1.0, 2.0, 0.0, 1.0]))
    halved = pb.diagnose(lambda h, x: (0.5 * h, None), 1.0, length=20, reverse=True)
    axes = plots.draw_cotangents(halved).axes[0]
    curve = next(line for line in axes.get_lines() if line.get_label() == "cotangent of the carry")
    np.testing.assert_allclose(curve.get_ydata(), 0.5 ** np.arange(20.0, -1, -1), rtol=1e-5)
    (band,) = (p for p in axes.patches if p.get_label().startswith("memory"))
    assert (band.get_x(), band.get_width()) == (20 - halved.memory, halved.memory)
    assert "the last of xs first" in axes.get_title() and axes.get_yscale() == "log"
    axes = plots.draw_cotangents(fault).axes[0]
    assert [text.get_text() for text in axes.texts] == ["step 2\ncarry infinite by div"]
    nothing = pb.diagnose(lambda n, x: (n + 1, None), 0, length=3)
    with pytest.raises(ValueError, match="diagnosis: got one without a positive"):
        plots.draw_cotangents(nothing)
