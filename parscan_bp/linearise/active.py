"""Which parts of a scan take part in differentiation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from parscan_bp.trees import replace_at


@dataclasses.dataclass(frozen=True)
class Active:
    """Which consts, inputs and outputs take part in differentiation, by position."""

    consts: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]

    def of_consts(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.consts]

    def of_x(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.x]

    def insert_consts(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.consts, active)

    def insert_x(self, values: Sequence[Any], active: Sequence[Any]) -> list[Any]:
        return replace_at(values, self.x, active)


NOTHING = Active((), (), ())
"""Of consts, inputs and outputs: the carry alone is differentiated."""
