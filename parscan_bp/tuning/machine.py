"""`measure_machine`: the rates that plans of products are made with, measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import check_number
from parscan_bp.choice.machine import remember_machine
from parscan_bp.operators import Convolution, Dense, Operator, Sparse
from parscan_bp.planner import Machine
from parscan_bp.sparsity import Pattern
from parscan_bp.tuning.race import race

ORDER, WIDE = 512, 2048
"""Orders of a matrix that stays in cache, and of one that does not."""
PER_ROW = 16
"""Entries in each row of a sparse matrix."""
MAPS = ((2, 4.0, 512), (4, 16.0, 256), (32, math.inf, 64))
"""Edges of feature maps, the positions up to which each stands for others, and its channels."""


def measure_machine(*, budget_s: float = 5.0) -> Machine:
    """The rates of this machine, measured and remembered: `chain` plans with them from then on.

    Each is that of a product with vectors as `chain` makes them: flops, or bytes, over the median
    time of its compiled program in float32. All cores that XLA uses are one worker.

    Args:
      budget_s: seconds for the timing; compilation comes on top.

    Returns:
      The machine. ``Planned(machine=...)`` takes it by name. Where it cannot be remembered, a
      warning says so.

    Raises:
      TypeError, ValueError: if the budget is no number of seconds.

    Example:
      >>> import parscan_bp as pb
      >>> machine = pb.measure_machine(budget_s=0)  # doctest: +SKIP
      >>> print(machine)  # doctest: +SKIP
      Machine(products=...
    """
    check_number("budget_s", budget_s)
    square = Dense(_normal(ORDER, ORDER))
    sparse = Sparse(_normal(ORDER * PER_ROW), _spread())
    convolutions = {most: _convolution(edge, channels) for edge, most, channels in MAPS}
    programs = {
        "products": _product(square, _normal(ORDER, ORDER)),
        "entries": _product(sparse, _normal(ORDER)),
        "shared": _product(sparse, _normal(8, ORDER)),
        "bandwidth": _product(Dense(_normal(WIDE, WIDE)), _normal(WIDE)),
    }
    programs |= {
        f"convolution {most}": _product(op, _normal(op.shape[1]))
        for most, op in convolutions.items()
    }
    found = race(programs, budget_s)
    flops = {
        "products": ORDER * square.cost().flops,
        "entries": sparse.cost().flops,
        "shared": 8 * sparse.cost().flops,
    }
    machine = Machine(
        **{name: count / found.median(name) for name, count in flops.items()},
        convolution=tuple(
            (most, op.cost().flops / found.median(f"convolution {most}"))
            for most, op in convolutions.items()
        ),
        bandwidth=4 * WIDE**2 / found.median("bandwidth"),
    )
    remember_machine(machine)
    return machine


def _normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape, jnp.float32)


def _spread() -> Pattern:
    """Entries all over a matrix, in no order that a cache would like."""
    apart = ORDER // PER_ROW
    rows = np.repeat(np.arange(ORDER), PER_ROW)
    cols = np.concatenate([np.arange(PER_ROW) * apart + k % apart for k in range(ORDER)])
    return Pattern.from_coordinates(rows, cols, (ORDER, ORDER))


def _convolution(edge: int, channels: int) -> Convolution:
    """Windows of 3 x 3, transposed as in a backward pass, whose outputs are edge x edge maps."""
    kernel = _normal(3, 3, channels, channels)
    padding = ((1, 1), (1, 1))
    return Convolution(kernel, (edge, edge), padding=padding, transposed=True)


def _product(op: Operator, vectors: jax.Array) -> Callable[[], jax.Array]:
    """The compiled product of an operator with a vector, or with each row."""
    run = jax.jit(lambda op, v: op.matvec(v) if v.ndim == 1 else jax.vmap(op.matvec)(v))
    program = run.lower(op, vectors).compile()
    return lambda: program(op, vectors)
