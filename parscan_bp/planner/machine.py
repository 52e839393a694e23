"""What operations on operators cost: a roofline of a few rates."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from parscan_bp.arguments import check_number, check_positive, described
from parscan_bp.operators import Cost, Operator


@dataclasses.dataclass(frozen=True)
class Machine:
    """Rates of one worker: an operation takes the longer of its arithmetic and its traffic.

    The defaults were measured on one core of a 2.5 GHz Xeon with jax 0.10.2, in float32.

    Args:
      products: flop/s of matrix products (a block product ran at 31 Gflop/s).
      entries: flop/s where numbers are gathered one by one (6 ns per entry of a sparse
        matrix-vector product).
      shared: the same for a matrix that a batch shares (2 ns with a batch of 8).
      convolution: pairs (positions, flop/s), ascending: the rate of a convolution whose output
        has at most so many positions, `math.inf` the last. XLA's CPU convolution does 30 to 80
        Gflop/s on large maps, 5 to 18 on 4x4 maps, and 0.4 on 2x2 maps of 512 channels.
      bandwidth: bytes/s (a matrix of order 2048 is applied in 1.7 ms).
      margin: part of the time that products, or a matrix in place of a convolution, have to save
        to be worth it; the rates are no better known.

    Raises:
      TypeError, ValueError: if a rate is no positive number, or there is none for a convolution.

    Example:
      >>> from parscan_bp.operators import Cost
      >>> from parscan_bp.planner import FLOPS, Machine
      >>> Machine(bandwidth=1e9).seconds(Cost(flops=3, bytes=10**9), 1e10)
      1.0
      >>> FLOPS.seconds(Cost(flops=3, bytes=10**9), FLOPS.products)
      3.0
    """

    products: float = 3e10
    entries: float = 3.3e8
    shared: float = 1e9
    convolution: tuple[tuple[float, float], ...] = ((4, 4e8), (16, 1e10), (math.inf, 3e10))
    bandwidth: float = 1e10
    margin: float = 0.1

    def __post_init__(self):
        for name in ("products", "entries", "shared", "bandwidth"):
            check_positive(name, getattr(self, name), math.inf)
        check_number("margin", self.margin)
        object.__setattr__(self, "convolution", _checked(self.convolution))

    def seconds(self, cost: Cost, rate: float) -> float:
        """Of an operation whose arithmetic runs at ``rate`` flop/s."""
        return max(cost.flops / rate, cost.bytes / self.bandwidth)

    def matvec(self, op: Operator, cost: Cost, vectors: int) -> float:
        """Seconds of a product of this cost with so many vectors."""
        return self.seconds(cost, self._rate(op, vectors))

    def forming(self, nbytes: int) -> float:
        """Seconds of gathering a matrix into new memory: read, fetched to be written, written."""
        return 3 * nbytes / self.bandwidth

    def product(self, a: Operator, b: Operator, made: Operator, cost: Cost) -> float:
        """Seconds of the product ``made`` of two operators."""
        if made.entry_pattern is not None:
            return self.seconds(cost, self.entries)
        # A dense product of a convolution is made column by column, through the convolution itself.
        through = [op for op in (a, b) if made.closed and op.rate(1) == "convolution"]
        return self.seconds(cost, min([self._rate(op) for op in through] or [self.products]))

    def _rate(self, op: Operator, vectors: int = 1) -> float:
        """The rate that an operator names; that of a convolution goes by its positions."""
        name = op.rate(vectors)
        if name != "convolution":
            return getattr(self, name)
        positions = math.prod(op.out_shape[:-1])  # type: ignore[attr-defined]
        return next(rate for most, rate in self.convolution if positions <= most)


def _checked(convolution: Any) -> tuple[tuple[float, float], ...]:
    """Pairs of a number of positions and a rate, as tuples."""
    wanted = "pairs (positions, flop/s), ascending, the last of math.inf positions, are wanted"
    try:
        pairs = tuple((most, rate) for most, rate in convolution)
    except (TypeError, ValueError):
        raise TypeError(f"convolution: got {described(convolution)}; {wanted}") from None
    for pair in pairs:
        for number in pair:
            check_positive("convolution", number, math.inf)
    positions = [most for most, _ in pairs]
    if positions != sorted(positions) or positions[-1:] != [math.inf]:
        raise ValueError(f"convolution: got {described(convolution)}; {wanted}")
    return pairs


CPU = Machine()
"""One core of a CPU."""
FLOPS = Machine(1.0, 1.0, 1.0, ((math.inf, 1.0),), math.inf, 0.0)
"""Counts flops instead of seconds, the measure of BPPSA section 5.3."""
