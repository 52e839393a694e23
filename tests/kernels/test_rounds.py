"""Steps of a recurrence by rounds."""

import itertools

import pytest

from parscan_bp.kernels.rounds import StepRounds

CASES = [(1, 1), (2, 8), (7, 3), (8, 8), (9, 1), (17, 8)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("length", "steps"), CASES)
def test_every_step_is_taken_once_and_has_a_place(length, steps, reverse):
    rounds = StepRounds(length, min(steps, length), reverse)
    by_round = [
        [int(rounds.nth(n, k)) for k in range(rounds.taken(n))] for n in range(rounds.count)
    ]
    taken = [t for steps_of in by_round for t in steps_of]
    assert taken == sorted(range(length), reverse=reverse)
    assert (int(rounds.first), int(rounds.last)) == (taken[0], taken[-1])
    assert all(rounds.before(t) == last for last, t in itertools.pairwise(taken))
    for n, steps_of in enumerate(by_round):
        places, times = rounds.places(n), rounds.times(n)
        for t in steps_of:
            assert int(rounds.place(t)) - int(places.start) == t - int(times.start)
            assert 0 <= t - int(times.start) < places.size == times.size
    assert {int(rounds.half(n)) for n in range(rounds.count)} == set(range(min(2, rounds.count)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("length", "steps"), CASES)
def test_what_is_before_the_first_step_is_overwritten_by_none_of_its_round(length, steps, reverse):
    rounds = StepRounds(length, min(steps, length), reverse)
    before = int(rounds.place(rounds.before(rounds.first)))
    first = [int(rounds.place(rounds.nth(0, k))) for k in range(rounds.taken(0))]
    assert 0 <= before < rounds.room
    assert before not in first
