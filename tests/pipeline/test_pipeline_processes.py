"""Blocks in two real processes, point to point: the simulator's bits."""

import pytest

import parscan_bp as pb


@pytest.mark.parametrize(
    "name",
    [
        "DSP(1,1,0;4,2,0)",
        pytest.param("OneFOneB", marks=pytest.mark.slow),
        pytest.param("ZeroBubble, H2", marks=pytest.mark.slow),
    ],
)
def test_two_processes_have_the_simulators_bits_after_40_ticks(name):
    found = pb.parallel.launch("tests.pipeline.process_targets:train", 2, arguments=[name, "38"])
    assert [own["blocks"] for own in found] == [[0], [1, 2]]
    assert all(own["same"] for own in found)
    assert [own["losses"] for own in found] == [0, 38]


@pytest.mark.slow
def test_two_processes_update_all_blocks_at_once_and_weigh_parts():
    found = pb.parallel.launch("tests.pipeline.process_targets:together", 2)
    assert [own["same"] for own in found] == [True, True]
    assert [own["states"] for own in found] == [[True], [False, False]]


def test_two_processes_send_integers_and_batches_of_other_sizes():
    found = pb.parallel.launch("tests.pipeline.process_targets:uneven", 2)
    assert found == [{"same": True}] * 2


@pytest.mark.slow
def test_two_processes_go_on_with_the_optimisers_states():
    found = pb.parallel.launch("tests.pipeline.process_targets:resume", 2)
    assert found == [{"same": True, "fresh": False}] * 2


@pytest.mark.slow
def test_lockstep_is_refused_by_name():
    for told in pb.parallel.launch("tests.pipeline.process_targets:refuse", 2):
        assert told.startswith("schedule: the blocks of FeaturesReplay wait for each other")


@pytest.mark.slow
def test_a_block_that_fails_ends_all_processes_and_is_named():
    with pytest.raises(pb.parallel.LaunchError, match="too hot") as told:
        pb.parallel.launch("tests.pipeline.process_targets:fail", 2, timeout=90)
    assert "in the thread of block 2" in str(told.value)
