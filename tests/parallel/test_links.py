"""A link between devices: measured, remembered, and what is reckoned with where none is named."""

import json
import math

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp import store
from parscan_bp.devices import as_link, cheapest, known_link, link
from parscan_bp.layers import Linear
from parscan_bp.operators import Dense

FAR = pb.parallel.Link(latency=1.0, bandwidth=math.inf)
THIN = pb.parallel.Link(latency=0.0, bandwidth=1.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))


def remember(found):
    return store.write(link._key(), {"link": {"latency": found[0], "bandwidth": found[1]}})


def test_a_link_that_is_remembered_is_the_one_that_is_reckoned_with():
    before = known_link()
    assert 0 < before.latency < 1 and before.bandwidth < math.inf
    remember((1.0, math.inf))
    assert known_link() == as_link(None) == FAR and as_link(THIN) == THIN
    plan = pb.parallel.explain_grid([Linear(4)], (4,), pb.parallel.Grid(model=2), 2)
    named = pb.parallel.explain_grid([Linear(4)], (4,), pb.parallel.Grid(model=2), 2, link=FAR)
    assert plan.seconds == named.seconds >= 1.0


def test_far_devices_are_sent_little_and_thin_links_few_bytes():
    maps = Dense(jnp.ones((50, 50))), jnp.ones(50)
    assert cheapest(8, maps, FAR) == "all_gather" and cheapest(8, maps, THIN) == "chain"


@pytest.mark.parametrize("held", [None, [], {"latency": 1.0}, {"latency": -1, "bandwidth": 1.0}])
def test_a_record_that_is_none_is_ignored(held):
    before, path = known_link(), remember((1.0, 1.0))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"link": held}))
    store._Generation.count += 1  # as in a new process
    with pytest.warns(UserWarning, match="ignored"):
        assert known_link() == before


def test_what_is_no_link_is_told():
    with pytest.raises(TypeError, match=r"link: got 2\.0, of type float; a Link"):
        as_link(2.0)


def test_it_is_measured_and_remembered(run_on_devices, tmp_path):
    run_on_devices(check_measured, 4, (str(tmp_path),))


def check_measured(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(store.VARIABLE, folder)
        found = pb.parallel.measure_link(jax.sharding.Mesh(jax.devices(), "a"), repeats=3)
        assert known_link() == found and 0 < found.latency < 1 and found.bandwidth > 1e5
