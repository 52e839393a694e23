"""What was measured is remembered, and nothing that is not what it should be is believed."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp import store
from parscan_bp.choice import wisdom
from parscan_bp.choice.wisdom import Remembered, Timing
from parscan_bp.linearise.body import Body
from parscan_bp.scan.api import loop_options, plan_of
from parscan_bp.scan.values import forward_wisdom
from parscan_bp.scan.values.forward_wisdom import RememberedForward
from parscan_bp.tuning.candidates import solver_candidates

TIMINGS = (Timing("a", 1e-3, 2.0, 1.9, 2.1),)
INIT, XS = jnp.ones((16, 3)), jnp.ones((20, 16, 3))


def step(c, x):
    return jnp.tanh(0.5 * c + x), None


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "wisdom"))
    return tmp_path / "wisdom"


def key(f=step, init=INIT, xs=XS):
    return plan_of(f, init, xs, loop_options(None, False, 1), None, "auto")[0].key


@pytest.mark.parametrize(
    "solver",
    [
        None,
        pb.Sweep(chunk=3),
        pb.Sweep(recompute=False),
        pb.Blelloch(scaled=True),
        pb.Chunked(scaled=True),
    ],
)
def test_a_solver_comes_back_as_it_was(solver):
    assert wisdom.recall("k") is None
    path = wisdom.remember("k", Remembered(solver, TIMINGS))
    assert path.exists()
    found = wisdom.recall("k")
    assert found.winner == solver and found.timings == TIMINGS
    store.remove("k")
    assert wisdom.recall("k") is None


def test_what_is_remembered_comes_before_the_rules_and_after_the_caller():
    before = pb.explain(step, INIT, XS)
    solver = pb.Chunked(chunks=2, scaled=True)
    wisdom.remember(key(), Remembered(solver, TIMINGS))
    found = pb.explain(step, INIT, XS)
    assert found.choice == repr(solver) != before.choice
    assert "measured on this machine" in found.reason and "a 1 ms" in found.reason
    assert pb.explain(step, INIT, XS, solver=pb.Sweep()).choice == repr(pb.Sweep())
    value = lambda scan: jax.grad(lambda c: jnp.sum(scan(step, c, XS)[0]))(INIT)  # noqa: E731
    np.testing.assert_allclose(value(pb.scan), value(jax.lax.scan), rtol=1e-5)
    store.remove(key())
    assert pb.explain(step, INIT, XS).choice == before.choice


def test_it_holds_for_a_step_its_types_and_about_its_length():
    same = key(xs=jnp.ones((21, 16, 3)))
    others = [
        key(xs=jnp.ones((40, 16, 3))),
        key(init=jnp.ones((8, 3)), xs=jnp.ones((20, 8, 3))),
        key(f=lambda c, x: (jnp.sin(0.5 * c + x), None)),
    ]
    assert key() == same and len({key(), *others}) == 4


def test_one_program_is_several_steps():
    """By which of its inputs are constants, carried, or given in each step."""

    def body(a, b):
        c = a @ b
        return jnp.tanh(c), 2 * c

    w = jnp.eye(4) / 2
    steps = [
        (lambda h, x: body(w, h), w, None),
        (lambda h, x: body(h, x), w, jnp.ones((20, 4, 4))),
        (lambda c, x: (body(*c), None), (w, w), None),
    ]
    how = loop_options(20, False, 1)
    keys = {plan_of(f, init, xs, how, None, "auto")[0].key for f, init, xs in steps}
    assert len(keys) == 3


def test_it_does_not_depend_on_the_order_of_hashes():
    def key(text):
        return wisdom.scan_key(Body(text, 1, 1), 20, 1)

    names = ["frozenset({'a', 'b'})", "frozenset({'b', 'a'})", "frozenset({'a', 'c'})"]
    one, same, other = (key(f"remat[policy=Names({n})] at 0x7f") for n in names)
    assert one == same != other


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": 0}', f'{{"schema": {store.SCHEMA}, "key": "other"}}'],
    ids=repr,
)
def test_what_is_damaged_or_foreign_is_ignored_and_told(text):
    path = wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS))
    path.write_text(text)
    with pytest.warns(UserWarning, match="this measurement is ignored"):
        assert wisdom.recall("k") is None


def record(name, **options):
    return {"solver": {"solver": name, "options": options}}


TIMING = {"name": "a", "seconds": 1e-3, "speedup": 2.0, "low": 1.9, "high": 2.1}


@pytest.mark.parametrize(
    "change",
    [
        *({"solver": value} for value in ("Sweep", 3, [], {}, {"solver": "Sweep"})),
        *(record(name) for name in ("Complexity", "Solver", "nothing", "os", "__init__")),
        # What is never raced here: not exact, iterative, of other systems, of other devices.
        record("Truncated", window=1),
        record("Jacobi", sweeps=1),
        *(record(name) for name in ("CyclicReduction", "Planned", "Richardson", "BiCGStab")),
        record("Sharded", axis="x"),
        pytest.param(
            record("Pallas"),
            marks=pytest.mark.skipif(jax.default_backend() == "gpu", reason="raced on a GPU"),
        ),
        record("Sweep", chunk=-1),
        record("Sweep", chunk=2.5),
        record("Sweep", no=1),
        record("Chunked", inner=record("Truncated", window=1)["solver"]),
        *({"timings": value} for value in (None, [], {}, ["a"], [{}])),
        *(
            {"timings": [TIMING | {"seconds": value}]}
            for value in ("x", None, True, [], 0, -1.0, float("nan"), float("inf"), 10**400)
        ),
        *({"timings": [TIMING | {"name": value}]} for value in (7, "\x1b[31m")),
        *({"date": value} for value in (5, None, "yesterday", "\x1b[31m")),
    ],
    ids=repr,
)
def test_what_no_race_has_said_is_ignored(change):
    path = wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(UserWarning, match="ignored") as told:
        assert wisdom.recall("k") is None
    assert len(told) == 1 and told[0].filename == __file__
    assert str(told[0].message).isprintable()


@pytest.mark.parametrize(
    "change",
    [
        *({"forward": value} for value in (None, 3, "chunks", {}, {"method": "Forward"})),
        {"forward": {"method": "Newton", "options": {"no": 1}}},
        {"forward": {"method": "Newton", "options": record("Truncated", window=1)}},
        {"timings": []},
        {"date": "yesterday"},
    ],
    ids=repr,
)
def test_what_no_race_of_methods_has_said_is_ignored(change):
    path = forward_wisdom.remember("k", RememberedForward(pb.Newton(), TIMINGS))
    assert forward_wisdom.recall("k").winner == pb.Newton()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(UserWarning, match="ignored"):
        assert forward_wisdom.recall("k") is None


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("[" * 100_000 + "]" * 100_000),
        lambda path: path.write_text('{"schema": ' + "9" * 6000 + "}"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to(os.devnull)),
        lambda path: (path.unlink(), path.symlink_to(path)),
    ],
    ids=["deep", "large", "binary", "FIFO", "folder", "device", "circle"],
)
def test_files_that_are_none_of_ours(make):
    make(wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS)))
    with pytest.warns(UserWarning, match="ignored"):
        assert wisdom.recall("k") is None


def test_all_that_is_raced_may_be_remembered():
    plan, _ = plan_of(step, INIT, XS, loop_options(None, False, 1), None, "auto")
    raced = {
        type(solver)
        for platform in ("cpu", "gpu")
        for solver in solver_candidates(
            dataclasses.replace(plan.facts, platform=platform, length=200)
        ).values()
    }
    assert raced == {*wisdom.RACED, type(None)}
    assert all(solver.exact for solver in wisdom.RACED)


@pytest.mark.parametrize("solver", [pb.Blelloch(), pb.Chunked(), pb.Associative(), pb.Pallas()])
def test_what_may_overflow_with_other_values_is_not_remembered(solver, recwarn):
    """A record of an earlier version that names one is ignored."""
    with pytest.raises(ValueError, match=r"solver: got .*may overflow where lax.scan's"):
        wisdom.remember("k", Remembered(solver, TIMINGS))
    assert wisdom.recall("k") is None and not recwarn
    path = wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS))
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"solver": wisdom.as_json(pb.Blelloch())}))
    with pytest.warns(UserWarning, match="this measurement is ignored"):
        assert wisdom.recall("k") is None


@pytest.mark.parametrize("below", ["file", "/proc/nope"])
def test_what_cannot_be_kept_is_told(below, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / below))
    with pytest.warns(UserWarning, match=f"not kept.*{store.VARIABLE}"):
        assert wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS)) is None
    assert wisdom.recall("k") is None
    store.remove("k")


def test_a_file_that_cannot_be_removed_is_told_of():
    path = wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS))
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match=f"old measurement stays.*{store.VARIABLE}"):
        store.remove("k")
    with pytest.warns(UserWarning, match="not kept"):
        assert wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS)) is None
    assert not list(path.parent.glob("*.tmp"))


def test_names_of_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for named in ("off", "OFF", "0", ""):
        monkeypatch.setenv(store.VARIABLE, named)
        assert store.folder() is None
    monkeypatch.setenv(store.VARIABLE, "~/wisdom")
    assert store.folder() == tmp_path / "wisdom"
    monkeypatch.delenv(store.VARIABLE)
    assert store.folder() == tmp_path / ".cache" / "parscan_bp" / "wisdom"
    monkeypatch.setenv("XDG_CACHE_HOME", "~")  # as it stays for a user without a home
    assert store.folder() is None


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv(store.VARIABLE, "off")
    assert wisdom.remember("k", Remembered(pb.Sweep(), TIMINGS)) is None
    assert wisdom.recall("k") is None
    store.remove("k")


def _write(folder, first):
    os.environ[store.VARIABLE] = folder
    for k in range(first, first + 20):
        wisdom.remember(f"k{k % 30}", Remembered(pb.Sweep(chunk=1 + k % 30), TIMINGS))


def test_several_processes_lose_nothing_of_each_others(folder):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(3, context) as pool:
        for done in [pool.submit(_write, str(folder), first) for first in (0, 10, 20)]:
            done.result()
    assert len(list(folder.iterdir())) == 30
    assert all(wisdom.recall(f"k{k}").winner == pb.Sweep(chunk=1 + k) for k in range(30))


def test_another_process_finds_it():
    wisdom.remember(key(), Remembered(pb.Chunked(chunks=2, scaled=True), TIMINGS))
    program = (
        "import jax.numpy as jnp, parscan_bp as pb\n"
        "def step(c, x): return jnp.tanh(0.5 * c + x), None\n"
        "print(pb.explain(step, jnp.ones((16, 3)), jnp.ones((20, 16, 3))).choice)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Chunked" in done.stdout, done.stderr[-500:]


def test_nothing_is_told_where_nothing_was_measured():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.explain(step, INIT, XS)


def mix(h, x):
    return jnp.tanh(h @ (jnp.eye(8) / 2) + x), h


def gradient(scan, xs, **options):
    return jax.grad(lambda xs: jnp.sum(scan(mix, jnp.zeros((4, 8)), xs, **options)[1]))(xs)


@pytest.mark.parametrize(
    ("length", "options"),
    [(21, {}), (20, {"memory_limit": 2**13})],
    ids=["its own, at another length", "the caller's"],
)
def test_what_its_limits_refuse_is_left_for_the_rules(length, options):
    init, xs = jnp.zeros((4, 8)), jnp.ones((20, 4, 8))
    by_rules = pb.explain(mix, init, xs).choice
    jacobians = xs.nbytes * 8
    solver = pb.Blelloch(memory_limit=4 * jacobians, scaled=True)
    wisdom.remember(key(mix, init, xs), Remembered(solver, TIMINGS))
    assert pb.explain(mix, init, xs).choice == repr(solver)
    xs = jnp.ones((length, 4, 8))
    found = pb.explain(mix, init, xs, **options)
    assert found.choice == by_rules and "refuses: memory_limit" in found.reason
    wanted = gradient(jax.lax.scan, xs)
    np.testing.assert_allclose(gradient(pb.scan, xs, **options), wanted, rtol=1e-5)


def test_what_keeps_residuals_is_left_where_none_are_kept():
    wisdom.remember(
        key(mix, XS[0, :4, :1] * jnp.ones(8), jnp.ones((20, 4, 8))),
        Remembered(pb.Sweep(recompute=False), TIMINGS),
    )
    found = pb.explain(mix, jnp.ones((4, 8)), jnp.ones((20, 4, 8)), jacobian="dense")
    assert "refuses" in found.reason and "recompute" in found.reason
