"""The mutants are of the package as it is, and the tests nearest to one come first."""

import collections

from tests import rooms
from tests.mutants.mutants import MUTANTS
from tests.mutants.nearest import distances


def test_the_text_of_each_is_there_once():
    for mutant in MUTANTS:
        text = (rooms.PACKAGE / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.name
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
        assert mutant.old != mutant.new


def test_there_are_forty_and_at_most_three_in_a_room():
    assert len({mutant.name for mutant in MUTANTS}) == 40
    rooms_of = [rooms.room_of(rooms.PACKAGE / mutant.file) for mutant in MUTANTS]
    assert max(collections.Counter(rooms_of).values()) <= 3 and len(set(rooms_of)) >= 24


def test_distances_are_counted_upwards():
    away = distances("operators")
    assert away["operators"] == 0
    assert away["solvers"] == 1 and away["scan"] <= 2
    assert "types" not in away
