"""What a choice of grids costs, in a table, before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from parscan_bp.arguments import as_int
from parscan_bp.devices import Link, as_link
from parscan_bp.parallel.grids.cost.program import LayerCost, SentBytes
from parscan_bp.parallel.grids.grid import Grid
from parscan_bp.parallel.grids.stack import LayerPlace, divide, grid_of_each


@dataclasses.dataclass(frozen=True)
class GridPlan:
    """A grid for each layer, and what they cost; ``str()`` is a table.

    Attributes:
      grids: one for each layer.
      rows: of `SentBytes.rows`, redistributions among them.
      places: where each row runs.
      seconds: of communication in one iteration, as the program sends.
      memory: bytes of parameters, gradients and activations on a process.
    """

    grids: tuple[Grid, ...]
    rows: tuple[LayerCost, ...]
    places: tuple[LayerPlace, ...]
    seconds: float
    memory: int

    def __str__(self):
        header = ("layer", "grid", "input", "kernel", "sent forward", "backward", "held")
        lines = [header]
        for row, place in zip(self.rows, self.places, strict=True):
            grid = "" if place.origin is None else str(self.grids[place.origin])
            lines.append(
                (
                    row.name,
                    grid,
                    str(place.layout.spec(len(place.features) + 1)),
                    _kernel_spec(row),
                    _sent(row, "forward"),
                    _sent(row, "backward"),
                    f"{row.activation + row.weights:.3g}",
                )
            )
        widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
        table = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join(
            [
                *table,
                f"one iteration sends for {self.seconds:.3g} s",
                f"a process holds {self.memory:.3g} bytes: parameters, gradients, activations",
            ]
        )


def _kernel_spec(row: LayerCost) -> str:
    leaves = jax.tree.leaves(row.specs, is_leaf=lambda a: isinstance(a, jax.sharding.PartitionSpec))
    return str(max(leaves, key=len)) if leaves else ""


def _sent(row: LayerCost, direction: str) -> str:
    return ", ".join(f"{kind} {size:.3g}" for kind, size in row.bytes_sent(direction).items())


def explain_grid(
    layers: Sequence[Any],
    features: Sequence[int],
    grids: Grid | Sequence[Grid],
    batch: int,
    *,
    link: Link | None = None,
) -> GridPlan:
    """What training on these grids sends and holds, without running it.

    Args:
      layers, features, grids: see `parallel.divide`; no device is needed.
      batch: B, whole.
      link: between the processes; ``None`` is what was measured of this machine
        (`parallel.measure_link`), or else between virtual devices of a CPU.

    Returns:
      A `GridPlan`; printed, it has a line for each layer with the `PartitionSpec` of its input and
      its kernel, and bytes on one device.

    Raises:
      TypeError, ValueError, NotImplementedError: as `parallel.divide`; if a grid does not divide
        the batch.

    Source: Gholami et al. 2018, section 4; its equations are in bench/paper/grids.

    Example:
      >>> import jax, parscan_bp as pb
      >>> from parscan_bp.layers import Conv, Flatten, Linear
      >>> layers = [Conv(8, (3, 3)), jax.nn.relu, Flatten(), Linear(12)]
      >>> convolutions = pb.parallel.Grid(data=2, height=2)
      >>> connected = pb.parallel.Grid(data=2, model=2)
      >>> grids = [convolutions] * 2 + [connected] * 2
      >>> plan = pb.parallel.explain_grid(layers, (8, 8, 3), grids, 16)
      >>> [row.bytes_sent("forward") for row in plan.rows if row.forward]
      [{'collective-permute': 1536}, {'all-gather': 16384}, {'all-gather': 384}]
    """
    link = as_link(link)
    batch = as_int("batch", batch)
    stack = divide(layers, features, grids)
    each = tuple(grid_of_each(grids, len(stack.whole)))
    program = SentBytes.of(link)
    rows = program.rows(stack, batch)
    return GridPlan(each, tuple(rows), stack.places, program.seconds(rows), program.memory(rows))
