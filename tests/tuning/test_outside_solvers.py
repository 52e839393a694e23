"""Solvers written outside of the package in races, in what is remembered, and in explanations."""

import dataclasses
import json
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp import store
from parscan_bp.choice import wisdom
from parscan_bp.tuning.race import Race

INIT, XS = jnp.ones((16, 3)) / 2, jnp.linspace(-1.0, 1.0, 40 * 48).reshape(40, 16, 3)


@dataclasses.dataclass(frozen=True)
class Delegating(pb.solvers.Solver):
    """A sweep by another name."""

    chunk: int = 4

    needs: ClassVar = "products"

    def run(self, system, state):
        return pb.Sweep(chunk=self.chunk).run(system, state)

    def complexity(self, n):
        return pb.Sweep(chunk=self.chunk).complexity(n)


@dataclasses.dataclass(frozen=True)
class OfAnArray(Delegating):
    """Its option is nothing that can be written down."""

    weights: object = dataclasses.field(default_factory=lambda: np.ones(2))


def step(c, x):
    return jnp.tanh(c @ (jnp.eye(3) / 2) + x), c


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    few = {"lax.scan": None, "Sweep()": pb.Sweep()}
    monkeypatch.setattr("parscan_bp.tuning.api.solver_candidates", lambda facts: dict(few))
    monkeypatch.setattr("parscan_bp.tuning.api.UNROLLED", ())
    return tmp_path


@pytest.fixture
def won(monkeypatch):
    """A race that one's own solver won."""
    name = repr(Delegating(8))

    def race(ready, *_):
        return Race({n: np.full(3, 1.0 if n == name else 2.0) for n in ready})

    monkeypatch.setattr("parscan_bp.tuning.result.race", race)
    return pb.autotune(step, INIT, XS, solvers=[Delegating(8)], budget_s=0, progress=False)


def test_the_winner_is_what_none_takes_from_then_on(won):
    assert won.solver == Delegating(8) and won.path is not None
    found = pb.explain(step, INIT, XS)
    assert found.choice == repr(Delegating(8)) and "measured on this machine" in found.reason
    ours, theirs = (
        jax.grad(lambda init, scan=scan: jnp.sum(scan(step, init, XS)[0] ** 2))(INIT)
        for scan in (pb.scan, jax.lax.scan)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_it_is_found_by_its_module_and_name_where_that_is_imported(won, monkeypatch):
    key = json.loads(won.path.read_text())["key"]
    assert json.loads(won.path.read_text())["solver"]["solver"] == f"{__name__}:Delegating"
    assert wisdom.recall(key).winner == Delegating(8)
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.warns(UserWarning, match=f"{__name__}, which has Delegating, is not imported"):
        assert wisdom.recall(key) is None
    assert __name__ not in sys.modules


def test_a_file_names_solvers_and_nothing_else(won):
    for name in ("os:system", "json:dumps", f"{__name__}:step", f"{__name__}:nothing"):
        held = json.loads(won.path.read_text())
        held["solver"]["solver"] = name
        won.path.write_text(json.dumps(held))
        with pytest.warns(UserWarning, match="ignored"):
            assert wisdom.recall(held["key"]) is None


def test_explain_has_a_row_of_it():
    found = pb.explain(step, INIT, XS, solver=Delegating())
    assert [type(c.solver).__name__ for c in found.candidates][-1] == "Delegating"
    assert "Delegating" in str(found)
    usual = pb.explain(step, INIT, XS, solver=pb.Sweep(chunk=8)).candidates
    assert len(usual) == len(found.candidates) - 1


def test_what_can_be_no_candidate_is_told():
    @dataclasses.dataclass(frozen=True)
    class Local(Delegating):
        """In a function, where nobody finds it again."""

    wrong = {
        "solvers: got 'Sweep'": "Sweep",
        "solver: Delegating is a class": [Delegating],
        r"solvers: got Truncated.* leaves something out": [pb.Truncated(3)],
        r"solvers: got Sharded.* divides the steps": [pb.Sharded("time")],
        r"solvers: got .*Local.* which cannot be remembered": [Local()],
        r"solvers: got OfAnArray.* which cannot be remembered": [OfAnArray()],
    }
    for words, solvers in wrong.items():
        with pytest.raises((TypeError, ValueError), match=words):
            pb.autotune(step, INIT, XS, solvers=solvers, budget_s=0, progress=False)
    with pytest.raises(TypeError, match="solvers: got 3"):
        pb.autotune_calls(lambda xs: pb.scan(step, INIT, xs)[0], XS, solvers=3)
