"""What orders threads and copies in a compiled kernel, each statement taken out in turn."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from tests.kernels.ptx.execute import Launch

KINDS = {
    "barrier": r"bar\.sync",
    "barrier of a warp": r"bar\.warp",
    "fence": r"fence\.proxy",
    "wait for copies out": r"cp\.async\.bulk\.wait_group",
    "wait for copies in": r"mbarrier\.try_wait",
}


@dataclasses.dataclass(frozen=True)
class Statement:
    """One that is executed.

    Attributes:
      kind: of `KINDS`.
      nth: of its kind, of those executed, from 1 on in the order of the program.
      number: of the instruction.
    """

    kind: str
    nth: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.nth}"


def statements(launch: Launch) -> list[Statement]:
    """All that the first block executes."""
    executed = launch.executed()
    found = []
    for kind, pattern in KINDS.items():
        numbers = [
            instruction.number
            for instruction in launch.program.code
            if re.match(pattern, instruction.operation) and executed[instruction.number]
        ]
        found += [Statement(kind, nth, number) for nth, number in enumerate(numbers, 1)]
    return found


def is_missed(launch: Launch, statement: Statement) -> bool:
    """Whether the first block does without: no race, the same numbers, nothing refused."""
    assert not launch.run(1)
    want = [output.copy() for output in launch.outputs]
    try:
        races = launch.run(1, without=[statement.number])
    except AssertionError:
        return False
    same = all(map(np.array_equal, map(_bits, want), map(_bits, launch.outputs)))
    return same and not races


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def missed(launch: Launch) -> list[str]:
    """The statements whose absence is not found."""
    return [str(statement) for statement in statements(launch) if is_missed(launch, statement)]
