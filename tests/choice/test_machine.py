"""The rates of a machine: a record that is none is ignored, and so is none that is made by hand."""

import json
import math

import pytest

from parscan_bp import store
from parscan_bp.choice import machine
from parscan_bp.planner import CPU, Machine


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))


MISTAKES = [
    *({name: value} for name in ("products", "bandwidth") for value in (0, -1.0, math.nan, "x")),
    *({"margin": value} for value in (-5, "a", math.nan)),
    *({"convolution": value} for value in ((), "abc", None, [[1]], [[4.0, 5e7]])),
    *({"convolution": [[math.inf, value]]} for value in (0, -1.0, math.nan, "x")),
    {"convolution": [[4.0, 1e9], [2.0, 1e9], [math.inf, 1e9]]},
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=repr)
def test_rates_that_are_none(mistake):
    (name,) = mistake
    with pytest.raises((TypeError, ValueError), match=f"{name}: got"):
        Machine(**mistake)


@pytest.mark.parametrize("held", [*MISTAKES, None, [], {"no": 1}], ids=repr)
def test_a_record_that_is_none_is_ignored(held):
    path = machine.remember_machine(Machine(products=1e9))
    assert machine.known_machine() == Machine(products=1e9)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": held}))
    store._Generation.count += 1  # as in a new process
    with pytest.warns(UserWarning, match="ignored"):
        assert machine.known_machine() == CPU
