"""Places for values that live for a while: how many there have to be, and who lies where."""

from __future__ import annotations

from collections.abc import Hashable, Mapping


def allocate(lives: Mapping[Hashable, tuple[int, int]]) -> tuple[dict[Hashable, int], int]:
    """A slot for each value, as few as can be.

    Values come in the order of their writes, each into the first slot that is free. Where they
    leave in the order in which they came, as in all queues of our schedules, that is a ring.

    Args:
      lives: of each value when it is written and when it is last read. What is read last at a
        moment may be overwritten in it.

    Returns:
      The slot of each value, and how many there are.

    Example:
      >>> from parscan_bp.pipeline.executors.slots import allocate
      >>> allocate({"a": (0, 2), "b": (1, 3), "c": (2, 4)})
      ({'a': 0, 'b': 1, 'c': 0}, 2)
    """
    free_from: list[int] = []
    slots: dict[Hashable, int] = {}
    for value, (written, read) in sorted(lives.items(), key=lambda item: item[1][0]):
        free = [slot for slot, moment in enumerate(free_from) if moment <= written]
        slots[value] = free[0] if free else len(free_from)
        if not free:
            free_from.append(0)
        free_from[slots[value]] = read
    return slots, len(free_from)
