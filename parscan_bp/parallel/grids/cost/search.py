"""Which grid for which layer: the fewest seconds of communication in so much memory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from parscan_bp.arguments import as_int
from parscan_bp.devices import Link, as_link
from parscan_bp.layers import Layer
from parscan_bp.layers.registry import as_stack
from parscan_bp.layers.stack import Sizes, sizes_of
from parscan_bp.parallel.grids.cost.plan import GridPlan, explain_grid
from parscan_bp.parallel.grids.cost.program import SentBytes
from parscan_bp.parallel.grids.grid import Grid, layout_of, mesh_axes
from parscan_bp.parallel.grids.layers.redistribute import Redistribute
from parscan_bp.parallel.grids.layout import Layout
from parscan_bp.parallel.grids.stack import LayerPlace, as_features, divided_layer


def best_grid(
    layers: Sequence[Any],
    features: Sequence[int],
    processes: int,
    batch: int,
    *,
    link: Link | None = None,
    memory_limit: int | None = None,
) -> GridPlan:
    """The grid of every layer with which training sends for the fewest seconds.

    Every layer may have P_r x P_c processes that divide the batch and the model, or the batch and
    the height; what lies between two grids is redistributed, and counts. The seconds are those of
    the `Link`, of all collectives one after the other, and the best of all choices is found
    by dynamic programming. What is computed is not counted: grids with P_c > B are no choice, and
    layers without weights run on every process of a model-parallel grid.

    Args:
      layers: what `parscan_bp.layers.as_layer` takes.
      features: shape of one input.
      processes: P.
      batch: B, whole.
      link: between the processes, as in `explain_grid`.
      memory_limit: bytes that a process may hold of parameters, gradients and activations;
        ``None`` is no limit.

    Raises:
      TypeError, ValueError: if an argument is none such.
      ValueError: if no choice fits in ``memory_limit``, naming the least that one takes; if no
        grid divides the batch.

    Source: Gholami et al. 2018, section 2.3 ("automatically selects the best configuration") and
    section 4 (memory).

    Example:
      >>> import parscan_bp as pb
      >>> from parscan_bp.layers import Conv, Flatten, Linear, MaxPool
      >>> layers = [Conv(64, (3, 3)), MaxPool((4, 4)), Flatten(), Linear(4096), Linear(10)]
      >>> plan = pb.parallel.best_grid(layers, (16, 16, 3), 8, 256)
      >>> str(plan.grids[0]), str(plan.grids[3])
      ('data 8', 'model 4 x data 2')
    """
    whole, shape = as_stack(layers), as_features(features)
    if not whole:
        raise ValueError("layers: got none; at least one is wanted")
    link = as_link(link)
    if memory_limit is not None:
        memory_limit = as_int("memory_limit", memory_limit)
    processes, batch = as_int("processes", processes), as_int("batch", batch)
    chains, sizes = list(_chains(processes)), tuple(sizes_of(whole, shape))
    best = None
    for chain in chains:
        found = _Search(whole, sizes, chain, batch, link, memory_limit).best()
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
    if best is None:
        raise ValueError(_no_grid(whole, sizes, chains, batch, link, memory_limit))
    return explain_grid(whole, shape, best.grids, batch, link=link)


def _no_grid(whole, sizes, chains, batch, link, memory_limit) -> str:
    searches = [_Search(whole, sizes, c, batch, link, None, by_memory=True) for c in chains]
    least = [found.memory for s in searches if (found := s.best()) is not None]
    if not least:
        return f"batch: got {batch}; no grid of {chains[0][-1]} processes fits these layers and it"
    return (
        f"memory_limit: got {memory_limit} bytes; the choice of grids that takes the least has "
        f"{min(least)} on a process"
    )


@dataclasses.dataclass(frozen=True)
class _Path:
    """Grids for the layers so far."""

    seconds: float
    memory: int
    grids: tuple[Grid, ...]


@dataclasses.dataclass(frozen=True)
class _Search:
    """Dynamic programming over the layers, on the grids of one chain of divisors."""

    layers: tuple[Layer, ...]
    sizes: tuple[Sizes, ...]
    chain: tuple[int, ...]
    batch: int
    link: Link
    memory_limit: int | None
    by_memory: bool = False

    @functools.cached_property
    def _grids(self) -> list[Grid]:
        whole = self.chain[-1]
        columns = [c for c in self.chain if self.batch % c == 0]
        divided = [Grid(data=c, model=whole // c) for c in columns]
        return divided + [Grid(data=c, height=whole // c) for c in columns if c < whole]

    @functools.cached_property
    def _axes(self) -> dict[str, int]:
        return mesh_axes(self._grids)

    def best(self) -> _Path | None:
        """The best choice, ``None`` if there is none."""
        if not self._grids:
            return None
        paths: dict[Grid | None, list[_Path]] = {None: [_Path(0.0, 0, ())]}
        moves = False
        for layer, size in zip(self.layers, self.sizes, strict=True):
            paths = self._after(paths, layer, tuple(size.x.shape[1:]), moves)
            moves = moves or bool(jax.tree.leaves(size.params))
        ends = [path for some in paths.values() for path in some]
        return min(ends, key=self._key, default=None)

    def _key(self, path: _Path) -> tuple[float, float]:
        both = (path.seconds, path.memory)
        return both[::-1] if self.by_memory else both

    def _after(self, paths, layer, features, moves) -> dict[Grid | None, list[_Path]]:
        """The paths that are worth going on with, by the grid of their last layer."""
        found: dict[Grid | None, list[_Path]] = {}
        for grid in self._grids:
            layout = layout_of(grid, self._axes)
            own = self._cost_of(layer, layout, features, moves)
            if own is None:
                continue
            made = []
            for before, some in paths.items():
                step = _added(own, self._between(before, layout, features, moves))
                made += [
                    _Path(path.seconds + step[0], path.memory + step[1], (*path.grids, grid))
                    for path in some
                ]
            if kept := self._undominated(made):
                found[grid] = kept
        return found

    def _between(self, before: Grid | None, layout: Layout, features, moves) -> tuple[float, int]:
        lay = None if before is None else layout_of(before, self._axes)
        if lay is None or (lay.data, lay.domain) == (layout.data, layout.domain):
            return 0.0, 0
        return self._row(
            LayerPlace(Redistribute(lay, layout, features), None, features, lay), moves
        )

    def _cost_of(self, layer, layout, features, moves) -> tuple[float, int] | None:
        """Seconds and bytes; ``None`` where the layer has no such form."""
        try:
            form = divided_layer(layer, layout, features)
        except (NotImplementedError, ValueError):
            return None
        return self._row(LayerPlace(form, 0, features, layout), moves)

    def _row(self, place: LayerPlace, moves: bool) -> tuple[float, int]:
        program = SentBytes.of(self.link)
        row = program.row(place, self._axes, self.batch, moves)
        return program.seconds([row]), program.memory([row])

    def _undominated(self, paths: list[_Path]) -> list[_Path]:
        """Those that no other beats in time and, where it is limited, in memory."""
        kept: list[_Path] = []
        for path in sorted(paths, key=self._key):
            if self.memory_limit is None:
                return [path]
            if path.memory <= self.memory_limit and (not kept or path.memory < kept[-1].memory):
                kept.append(path)
        return kept


def _added(a: tuple[float, int], b: tuple[float, int]) -> tuple[float, int]:
    return a[0] + b[0], a[1] + b[1]


def _chains(processes: int) -> Iterator[tuple[int, ...]]:
    """Every way from 1 to P by one prime factor at a time: the grids of one mesh."""
    primes, rest, prime = [], processes, 2
    while rest > 1:
        while rest % prime == 0:
            primes.append(prime)
            rest //= prime
        prime += 1
    for order in _orders(tuple(primes)):
        yield tuple(itertools.accumulate(order, lambda a, b: a * b, initial=1))


def _orders(primes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The different orders of some numbers."""
    if not primes:
        yield ()
    for prime in sorted(set(primes)):
        at = primes.index(prime)
        for rest in _orders(primes[:at] + primes[at + 1 :]):
            yield (prime, *rest)
