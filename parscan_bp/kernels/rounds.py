"""Which steps of a recurrence are copied at once, and where they lie on chip."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl


@dataclasses.dataclass(frozen=True)
class StepRounds:
    """Steps by rounds, which are counted in the order in which they are taken.

    On chip there is room for two rounds: step t lies at t mod 2 ``steps``, so that a round is one
    half of the room, in the order of time. The last steps by time may be fewer than a round.

    Attributes:
      length: T.
      steps: of a round.
      reverse: whether step t follows step t + 1.
    """

    length: int
    steps: int
    reverse: bool

    @property
    def count(self) -> int:
        return -(-self.length // self.steps)

    @property
    def room(self) -> int:
        """Steps that there is room for."""
        return 2 * self.steps

    def times(self, n: Any, zero: Any = 0) -> Any:
        """The steps of round n, of which the last may be past the end; step 0 is at ``zero``."""
        return pl.ds(zero + self._block(n) * self.steps, self.steps)

    def half(self, n: Any) -> Any:
        """Where round n lies, 0 or 1."""
        return _remainder(self._block(n), 2)

    def places(self, n: Any) -> Any:
        """Those of round n."""
        return pl.ds(self.half(n) * self.steps, self.steps)

    def taken(self, n: Any) -> Any:
        """How many steps round n has."""
        return jnp.minimum(self.steps, self.length - self._block(n) * self.steps)

    def nth(self, n: Any, k: Any) -> Any:
        """The k-th step that is taken of round n."""
        first = self._block(n) * self.steps
        return first + (self.taken(n) - 1 - k if self.reverse else k)

    def place(self, t: Any) -> Any:
        return _remainder(t + self.room, self.room)

    def before(self, t: Any) -> Any:
        """The step taken before step t."""
        return t + (1 if self.reverse else -1)

    @property
    def first(self) -> Any:
        """The first step that is taken."""
        return jnp.int32(self.length - 1 if self.reverse else 0)

    @property
    def last(self) -> Any:
        return jnp.int32(0 if self.reverse else self.length - 1)

    def _block(self, n: Any) -> Any:
        return self.count - 1 - n if self.reverse else n


def _remainder(n: Any, of: int) -> Any:
    """n mod ``of`` in n's own precision, which a number of Python's has not where x64 is on."""
    return lax.rem(n, lax.full_like(n, of))
