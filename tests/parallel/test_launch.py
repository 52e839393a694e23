"""Real processes: the same gradient as one, and an end in bounded time where one fails."""

import time

import pytest

from parscan_bp.parallel import LaunchError, launch

TARGETS = "tests.parallel.targets"
FAILURES = {
    "raise": r"process 1 raised:(.|\n)*ValueError: this process had enough",
    "kill": r"process 1 ended with signal 9",
    "stall": r"Timed out(.|\n)*process 1 had not ended: it stalls, or waits for another",
}


def ends(how, processes=2, **options):
    start = time.monotonic()
    with pytest.raises(LaunchError, match=FAILURES[how].replace("1", str(processes - 1), 1)):
        launch(f"{TARGETS}:fails", processes, arguments=[how], **options)
    return time.monotonic() - start


def test_a_gradient_of_two_processes():
    errors = launch(f"{TARGETS}:gradient_error", 2, arguments=["ppermute"])
    assert len(errors) == 2 and max(errors) < 1e-5


def test_one_that_raises_ends_all():
    assert ends("raise") < 60


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("how", ["kill", "stall", "raise"])
def test_each_failure_ends_in_bounded_time(how, processes):
    assert ends(how, processes, stall=5) < 60


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppermute", "all_gather", "chain", "turns"])
def test_a_gradient_of_four_processes(method):
    assert max(launch(f"{TARGETS}:gradient_error", 4, arguments=[method])) < 1e-5


@pytest.mark.slow
def test_a_run_that_is_too_long_is_ended():
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"took longer than 15 s: process 0 had not ended"):
        launch(f"{TARGETS}:fails", 2, arguments=["stall"], timeout=15, stall=100)
    assert time.monotonic() - start < 30


def test_a_target_that_is_none():
    with pytest.raises(ValueError, match=r"target: got 'math', of type str; 'module:function'"):
        launch("math", 2)
    with pytest.raises(TypeError, match=r"processes: got 2.0, of type float"):
        launch("math:sqrt", 2.0)
