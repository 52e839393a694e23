"""Races: gradients are compared first, what is clearly faster is remembered, nothing else."""

import dataclasses
import functools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp import store
from parscan_bp.choice import wisdom
from parscan_bp.choice.choose import Trial, choose, on_trial
from parscan_bp.choice.machine import known_machine
from parscan_bp.planner import CPU
from parscan_bp.scan.api import loop_options, plan_of
from parscan_bp.tuning.candidates import solver_candidates
from parscan_bp.tuning.race import Race
from parscan_bp.tuning.result import decide, differs, with_methods

SCALED = pb.Blelloch(scaled=True)
INIT, XS = jnp.ones((16, 3)) / 2, jnp.linspace(-1.0, 1.0, 40 * 48).reshape(40, 16, 3)


def step(c, x):
    return jnp.tanh(c @ (jnp.eye(3) / 2) + x), c


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    few = {"lax.scan": None, "Sweep()": pb.Sweep(), repr(SCALED): SCALED}
    monkeypatch.setattr("parscan_bp.tuning.api.solver_candidates", lambda facts: dict(few))
    monkeypatch.setattr("parscan_bp.tuning.api.UNROLLED", (4,))


def autotune(*args, **options):
    return pb.autotune(*args, **{"budget_s": 0, "progress": False} | options)


def test_a_race_says_what_it_found():
    found = autotune(step, INIT, XS)
    names = {timing.name for timing in found.timings}
    assert {"lax.scan", "lax.scan, unroll=4", repr(pb.Sweep()), found.by_rules} <= names
    assert all(t.low <= t.speedup <= t.high for t in found.timings)
    assert "lax.scan" in str(found) and "by the rules" in str(found)
    assert not found.refused


def test_methods_of_the_forward_pass_where_they_are_allowed(monkeypatch):
    """What is found is remembered for ``forward="auto"``, whatever becomes of the solvers."""
    xs = jnp.linspace(-1.0, 1.0, 64 * 3).reshape(64, 1, 3)
    fast = f"forward={pb.Chunks(4)!r}"

    def race(ready, *_):
        return Race({name: np.full(3, 1.0 if name == fast else 2.0) for name in ready})

    monkeypatch.setattr("parscan_bp.tuning.result.race", race)
    before = pb.explain(step, INIT[:1], xs, forward="auto").forward
    assert before.forward == "exact" and "measured on this machine" not in before.reason
    found = autotune(step, INIT[:1], xs, forward=(pb.Chunks(4),))
    assert found.winner == found.by_rules and found.forward == pb.Chunks(4)
    assert not found.refused and f"forward='auto' is {fast}" in str(found)
    after = pb.explain(step, INIT[:1], xs, forward="auto").forward
    assert after.forward == pb.Chunks(4) and fast in after.reason
    slow = [dataclasses.replace(t, low=0.5) if t.name == fast else t for t in found.timings]
    plan, _ = plan_of(step, INIT[:1], xs, loop_options(None, False, 1), None, "auto")
    methods = {fast: pb.Chunks(4)}
    again = with_methods(dataclasses.replace(found, timings=tuple(slow)), plan.key, methods)
    assert again.forward == "exact"
    assert pb.explain(step, INIT[:1], xs, forward="auto").forward.forward == "exact"


def test_cells_shapes_and_what_is_differentiated(capsys):
    cell = pb.cells.GRU()
    params = cell.init(jax.random.key(0), 3, 4)
    like = jax.ShapeDtypeStruct((30, 2, 3), jnp.float32)
    carry = cell.initial_carry((2,), 4)
    found = autotune(functools.partial(cell, params), carry, like, wrt=("params",), progress=True)
    assert "autotune: compiles lax.scan" in capsys.readouterr().err
    assert len(found.timings) == 4


@dataclasses.dataclass
class Made:
    """A program that takes so many bytes."""

    value: float
    bytes: int

    def __call__(self, moved=False):
        return jnp.asarray(self.value * (1 + 1e-7 * moved))


def program(seconds, value=1.0, size=8):
    """What compiles to a program of so many ticks of the clock below."""
    return lambda: Made(value, size)


@pytest.fixture
def race_of(monkeypatch):
    """A race whose samples are given."""

    def fix(**seconds):
        found = Race({name: np.array(s) for name, s in seconds.items()})
        monkeypatch.setattr("parscan_bp.tuning.result.race", lambda ready, *_: found)

    return fix


SOLVERS = {"lax": None, "rules": pb.Sweep(), "other": SCALED}


def decided(programs):
    return decide(programs, SOLVERS, "lax", "rules", "key", 0, lambda text: None)


def test_what_is_clearly_faster_is_remembered(race_of):
    race_of(lax=[3, 3.1, 3], rules=[2, 2.1, 2], other=[1, 1.1, 1])
    found = decided({name: program(1) for name in SOLVERS})
    assert found.winner == "other" and found.solver == SCALED
    assert wisdom.recall("key").winner == SCALED
    assert found.path.exists() and str(found.path) in str(found)


def test_what_may_overflow_is_told_and_not_remembered(race_of):
    """Values change after the race, and with them whether products of Jacobians are finite."""
    solvers = {"lax": None, "rules": pb.Sweep(), "tree": pb.Blelloch(), "other": SCALED}
    race_of(lax=[4, 4, 4], rules=[3, 3, 3], tree=[1, 1, 1], other=[2, 2, 2])
    programs = {name: program(1) for name in solvers}
    found = decide(programs, solvers, "lax", "rules", "key", 0, lambda text: None)
    assert found.winner == "other" and wisdom.recall("key").winner == SCALED
    assert found.named_alone == ("tree",) and "tree is faster, and" in str(found)
    race_of(lax=[4, 4, 4], rules=[3, 3, 3], tree=[1, 1, 1], other=[3, 3, 3])
    found = decide(programs, solvers, "lax", "rules", "key", 0, lambda text: None)
    assert found.winner == "rules" and found.path is None and wisdom.recall("key") is None
    assert found.named_alone == ("tree",)


@pytest.mark.parametrize("limit, winner", [(None, "other"), (30, "rules"), (15, "lax")])
def test_the_fastest_that_fits_is_remembered(race_of, limit, winner):
    race_of(lax=[3, 3.1, 3], rules=[2, 2.1, 2], other=[1, 1.1, 1])
    programs = {"lax": program(1, size=10), "rules": program(1, size=20)}
    programs |= {"other": program(1, size=40)}
    found = decide(programs, SOLVERS, "lax", "rules", "key", 0, lambda text: None, limit)
    assert found.winner == winner and {t.name: t.bytes for t in found.timings}["other"] == 40
    kept = wisdom.recall("key")
    assert kept is None if winner == "rules" else kept.winner == SOLVERS[winner]
    assert "MB" in str(found)


def test_a_limit_that_nothing_meets(race_of):
    race_of(lax=[3, 3.1, 3], rules=[2, 2.1, 2], other=[1, 1.1, 1])
    programs = {name: program(1, size=40) for name in SOLVERS}
    with pytest.raises(ValueError, match="memory_limit: got 15; the least is 40 bytes"):
        decide(programs, SOLVERS, "lax", "rules", "key", 0, lambda text: None, 15)


def test_what_is_hardly_faster_is_not_and_what_was_remembered_goes(race_of):
    race_of(lax=[3, 3.1, 3], rules=[2, 2.1, 2], other=[1, 1.1, 1])
    decided({name: program(1) for name in SOLVERS})
    race_of(lax=[3, 3.1, 3], rules=[1.02, 1.1, 1.02], other=[1, 1.1, 1])
    found = decided({name: program(1) for name in SOLVERS})
    assert found.winner == "rules" and found.path is None
    assert wisdom.recall("key") is None
    assert "nothing else is clearly faster" in str(found)


def test_a_wrong_gradient_takes_no_part(race_of):
    race_of(lax=[3, 3, 3], rules=[2, 2, 2])
    found = decided({"lax": program(1), "rules": program(1), "other": program(1, value=1.5)})
    assert found.winner == "rules" and "differs from lax.scan" in found.refused["other"]


def test_a_solver_that_refuses_takes_no_part(race_of):
    def refuse():
        raise NotImplementedError("cannot take it\nat all")

    race_of(lax=[3, 3, 3], rules=[2, 2, 2])
    found = decided({"lax": program(1), "rules": program(1), "other": refuse})
    assert found.refused == {"other": "cannot take it"}


def test_nan_is_a_difference_and_amplified_rounding_is_none():
    one, nan = jnp.ones(2), jnp.array([1.0, jnp.nan])
    assert differs(nan, one, one) and differs(one + 1, one, one)
    assert not differs(one, one, one) and not differs(one * 1.01, one, one * 1.001)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((step, INIT, XS), {"wrt": ("weights",)}, ValueError, "wrt: got"),
        ((step, INIT, XS), {"wrt": "init"}, ValueError, "wrt: got"),
        ((step, INIT, XS), {"wrt": ()}, ValueError, "wrt: got"),
        ((step, INIT, XS), {"wrt": 3}, ValueError, "wrt: got"),
        ((step, INIT, XS), {"wrt": ("xs", "xs")}, ValueError, "wrt: got"),
        ((step, INIT, XS), {"progress": "x"}, TypeError, "progress: got"),
        ((step, INIT, XS), {"forward": "chunks"}, ValueError, "forward: got 'chunks'"),
        ((step, INIT, XS), {"forward": 3}, ValueError, "forward: got 3"),
        ((step, INIT, XS), {"forward": pb.Chunks()}, ValueError, "forward: got Chunks"),
        ((step, INIT, XS), {"forward": ("exact",)}, ValueError, "forward: got 'exact'"),
        ((step, INIT, XS), {"forward": (pb.Newton(guess=XS),)}, ValueError, "forward: got Newton"),
        ((step, INIT, XS), {"budget_s": -1}, ValueError, "budget_s"),
        ((step, INIT, XS), {"budget_s": "1"}, TypeError, "budget_s"),
        ((step, INIT, XS), {"memory_limit": 0}, ValueError, "memory_limit: got 0"),
        ((step, INIT, XS), {"memory_limit": 1e6}, TypeError, "memory_limit: got 1000000.0"),
        ((lambda c, x: (c + 1, x), 0, XS), {}, ValueError, "nothing to choose"),
    ],
)
def test_mistakes(arguments, options, error, message):
    with pytest.raises(error, match=message):
        autotune(*arguments, **options)


def test_nothing_is_timed_in_a_trace():
    for transform in (jax.jit, jax.grad):
        with pytest.raises(ValueError, match="autotune: got traced values"):
            transform(lambda c: autotune(step, c, XS) and c.sum())(INIT)


def test_candidates():
    plan, _ = plan_of(step, INIT, XS, loop_options(None, False, 1), None, "auto")
    assert {"lax.scan", "Sweep()", "Blelloch()"} <= set(solver_candidates(plan.facts))
    rounds = repr(pb.ChunkedCorrections())
    assert rounds not in solver_candidates(plan.facts)  # of 40 steps it is a sweep
    assert rounds in solver_candidates(dataclasses.replace(plan.facts, length=200))


def loss(w, xs):
    """Two scans of different steps."""

    def turned(h, x):
        return jnp.tanh(h @ w["a"] + x), h

    def shifted(h, x):
        return jnp.sin(h @ w["b"]) + x, h

    _, ys = pb.scan(turned, jnp.zeros((16, 3)), xs)
    return jnp.sum(pb.scan(shifted, jnp.zeros((16, 3)), ys)[1] ** 2)


WEIGHTS = {"a": jnp.eye(3) / 2, "b": jnp.ones((3, 3)) / 4}
LONG = jax.ShapeDtypeStruct((200, 16, 3), jnp.float32)


def autotune_calls(*args):
    return pb.autotune_calls(*args, budget_s=0, progress=False)


def test_every_scan_of_a_function_is_raced():
    found = autotune_calls(loss, WEIGHTS, jax.ShapeDtypeStruct((32, 16, 3), jnp.float32))
    assert len(found) == 2
    for one in found:
        assert {"lax.scan", repr(pb.Sweep()), repr(SCALED)} <= {t.name for t in one.timings}
        assert not one.refused


def test_the_winner_of_one_scan_is_taken_for_it_alone(monkeypatch):
    """The candidate of the second scan alone is fast: so that it wins there, and is remembered."""
    tried = []

    def race(ready, *_):
        tried.append(set(ready))
        seconds = dict.fromkeys(ready, 2.0)
        if len(tried) == 2:
            seconds[repr(SCALED)] = 1.0
        return Race({name: np.full(3, s) for name, s in seconds.items()})

    monkeypatch.setattr("parscan_bp.tuning.result.race", race)
    first, second = autotune_calls(loss, WEIGHTS, LONG)
    assert first.winner == first.by_rules and second.solver == SCALED
    seen = []
    monkeypatch.setattr(
        sys.modules["parscan_bp.scan.plan"],
        "choose",
        lambda q, _: seen.append(choose(q)) or seen[-1],
    )
    jax.eval_shape(lambda w, xs: loss(w, xs), WEIGHTS, LONG)
    assert [choice.solver for choice in seen] == [SOLVERS["rules"], SCALED]


def test_layers_of_flax():
    from flax import linen, nnx

    import parscan_bp.linen
    import parscan_bp.nnx

    like = jax.ShapeDtypeStruct((4, 300, 3), jnp.float32)
    layer = parscan_bp.nnx.RNN(nnx.GRUCell(3, 5, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(layer)
    (found,) = autotune_calls(lambda state, x: nnx.merge(graph, state)(x), state, like)
    assert repr(SCALED) in {t.name for t in found.timings}
    layer = parscan_bp.linen.RNN(linen.GRUCell(5))
    params = layer.init(jax.random.key(0), jnp.ones((4, 300, 3)))
    (found,) = autotune_calls(layer.apply, params, like)
    assert repr(SCALED) in {t.name for t in found.timings}


def test_scans_that_cannot_be_raced():
    with pytest.raises(ValueError, match=r"fun: got .* which runs no scan"):
        autotune_calls(jnp.sin, 1.0)
    with pytest.raises(TypeError, match="fun: got"):
        autotune_calls(3)
    with pytest.raises(ValueError, match="autotune_calls: got traced values"):
        jax.jit(lambda w: autotune_calls(loss, w, LONG) and w)(WEIGHTS)
    with pytest.raises(ValueError, match="autotune_calls: got traced values"):
        jax.jit(lambda w: autotune_calls(lambda xs: loss(w, xs), LONG) and w)(WEIGHTS)
    with pytest.raises(TypeError, match=r"args\[1\]: got 'a', of type str"):
        autotune_calls(loss, WEIGHTS, "a")
    with jax.disable_jit():
        with pytest.raises(ValueError, match=r"autotune_calls: jax\.disable_jit is on"):
            autotune_calls(loss, WEIGHTS, LONG)
        with pytest.raises(ValueError, match=r"autotune: jax\.disable_jit is on"):
            autotune(step, INIT, XS)


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint])
def test_what_jax_has_a_trace_of_is_traced_anew(transform):
    """A Python number among the arguments, too."""

    def run(scale, xs):
        return pb.scan(step, scale * INIT, xs)[1]

    inner = transform(run)
    inner(2.0, XS)
    (found,) = autotune_calls(lambda *args: inner(*args), 2.0, XS)
    names = {"lax.scan", repr(pb.Sweep()), repr(SCALED)}
    assert names <= {t.name for t in found.timings} and not found.refused


def test_a_result_that_cannot_be_kept_is_not_lost(race_of, tmp_path, monkeypatch):
    race_of(lax=[3, 3.1, 3], rules=[2, 2.1, 2], other=[1, 1.1, 1])
    (tmp_path / "file").touch()
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=f"not kept.*{store.VARIABLE}") as told:
        found = decided({name: program(1) for name in SOLVERS})
    assert found.solver == SCALED and found.path is None and len(told) == 1
    assert "is not kept" in str(found)


def test_a_trial_leaves_nothing_behind():
    before = pb.explain(step, INIT, XS).choice
    with on_trial(
        Trial(plan_of(step, INIT, XS, loop_options(None, False, 1), None, "auto")[0].key)
    ):
        assert pb.explain(step, INIT, XS).choice == "lax.scan"
    assert pb.explain(step, INIT, XS).choice == before


def test_a_machine_is_measured_and_remembered(monkeypatch):
    monkeypatch.setattr("parscan_bp.tuning.machine.ORDER", 64)
    monkeypatch.setattr("parscan_bp.tuning.machine.WIDE", 64)
    monkeypatch.setattr(
        "parscan_bp.tuning.machine.MAPS", ((2, 4.0, 4), (4, 16.0, 4), (8, math.inf, 4))
    )
    assert known_machine() == CPU
    machine = pb.measure_machine(budget_s=0)
    assert machine == known_machine() != CPU
    assert all(rate > 1e4 for rate in dataclasses.astuple(machine)[:3])
    layers = [pb.layers.Linear(4), jax.nn.relu, pb.layers.Linear(2)]
    params = pb.layers.init(layers, jax.random.key(0), (3,))
    plan = pb.explain_chain(layers, params, jnp.ones((5, 3)))
    assert plan.table.machine == machine and f"rates, measured or named: {machine}" in str(plan)
    named = pb.explain_chain(layers, params, jnp.ones((5, 3)), solver=pb.Planned())
    assert "rates: the package's own" in str(named)
