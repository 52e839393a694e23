"""Process grids, one for each layer, and the one mesh of devices on which all of them live."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from parscan_bp.arguments import check_kind, described, set_ints
from parscan_bp.parallel.grids.layout import WHOLE, Layout, Split, by_axes_of_all

ROLES = ("data", "height", "width", "model")
"""What a dimension of a grid divides, from the major to the minor one."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """P = P_r x P_c processes of one layer: P_c divide the batch, P_r the model or the domain.

    Args:
      data: P_c, the parts of the batch.
      model: P_r, the parts of a layer's output channels, where the model is divided.
      height: the parts of the first spatial axis, where the domain is divided.
      width: the parts of the second.

    Raises:
      TypeError, ValueError: if one is no positive int.
      NotImplementedError: if both the model and the domain are divided.

    Source: Gholami et al. 2018, sections 2.3 and 2.4.

    Example:
      >>> import parscan_bp as pb
      >>> str(pb.parallel.Grid(data=4, model=2)), pb.parallel.Grid(data=4, height=2).processes
      ('model 2 x data 4', 8)
    """

    data: int = 1
    model: int = 1
    height: int = 1
    width: int = 1

    def __post_init__(self):
        set_ints(self, data=1, model=1, height=1, width=1)
        if self.model > 1 and self.height * self.width > 1:
            raise NotImplementedError(
                f"model: got {self.model} beside height={self.height}, width={self.width}; P_r "
                "divides either the model or the domain of a layer"
            )

    def __str__(self):
        others = [f"{role} {getattr(self, role)}" for role in ROLES[1:] if getattr(self, role) > 1]
        return " x ".join([*others, f"data {self.data}"])

    @property
    def processes(self) -> int:
        """P, the number of processes."""
        return math.prod(getattr(self, role) for role in ROLES)

    def cuts(self) -> list[int]:
        """Processes up to the end of each role."""
        return list(itertools.accumulate((getattr(self, r) for r in ROLES), lambda a, b: a * b))


def mesh_axes(grids: Sequence[Grid]) -> dict[str, int]:
    """The axes of a mesh on which every grid divides by whole axes: names and sizes.

    An axis is named after its roles: "data_model" divides the batch of some layers and the
    channels of others; a second one with the same roles is "data_model_2".

    Raises:
      TypeError: if one is no `Grid`.
      ValueError: if the grids have different numbers of processes, or no such mesh exists.

    Example:
      >>> from parscan_bp.parallel.grids.grid import Grid, mesh_axes
      >>> mesh_axes([Grid(data=8), Grid(data=2, model=4)])
      {'data': 2, 'data_model': 4}
    """
    for grid in grids:
        check_kind("grids", grid, Grid)
    counts = sorted({grid.processes for grid in grids})
    if len(counts) != 1:
        raise ValueError(f"grids: got grids of {counts} processes; one number is wanted")
    cuts = sorted({1, *(cut for grid in grids for cut in grid.cuts())})
    for low, high in itertools.pairwise(cuts):
        if high % low:
            raise ValueError(
                f"grids: got {', '.join(map(str, dict.fromkeys(grids)))}, which divide the "
                f"processes after {low} and after {high}; one has to be a multiple of the other"
            )
    axes: dict[str, int] = {}
    used: collections.Counter[str] = collections.Counter()
    for low, high in itertools.pairwise(cuts):
        found = {_role_from(grid, low) for grid in grids}
        name = "_".join(role for role in ROLES if role in found)
        used[name] += 1
        axes[name if used[name] == 1 else f"{name}_{used[name]}"] = high // low
    return axes or {"data": 1}


def _role_from(grid: Grid, place: int) -> str:
    """The role of the mesh axis of a grid that begins at a cut."""
    return next(role for role, end in zip(ROLES, grid.cuts(), strict=True) if place < end)


def layout_of(grid: Grid, axes: Mapping[str, int]) -> Layout:
    """How a layer with this grid lies on the mesh."""
    place, splits = 1, dict.fromkeys(ROLES, WHOLE)
    for name, size in axes.items():
        if size > 1:
            role = _role_from(grid, place)
            splits[role] = by_axes_of_all(splits[role], Split((name,), (size,)))
            place *= size
    domain: tuple[Split, ...] = (splits["height"], splits["width"])
    while domain and not domain[-1].axes:
        domain = domain[:-1]
    return Layout(splits["data"], domain, splits["model"])


def mesh_of(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh with these axes.

    Args:
      axes: names and sizes.
      devices: as many as the axes hold; ``None`` is `jax.devices`.

    Raises:
      TypeError, ValueError: as `as_devices`; if there are not as many.
    """
    found = as_devices(jax.devices() if devices is None else devices)
    wanted = math.prod(axes.values())
    if len(found) != wanted:
        raise ValueError(
            f"grids: got grids of {wanted} processes for {len(found)} devices; a grid has one "
            "process for each device. Name the devices to take fewer than there are"
        )
    return Mesh(np.array(found).reshape(tuple(axes.values())), tuple(axes))


def as_devices(devices: Any) -> list[Any]:
    """The devices of a sequence, or of the array of a mesh.

    Raises:
      TypeError: if they are none.
      ValueError: if one is there twice.
    """
    several = isinstance(devices, Sequence | np.ndarray) and not isinstance(devices, str)
    found = list(np.ravel(np.array(devices, object))) if several else []
    if not found or not all(isinstance(each, jax.Device) for each in found):
        raise TypeError(f"devices: got {described(devices)}; a sequence of jax.Device is wanted")
    if len(set(found)) != len(found):
        raise ValueError("devices: got one of them twice; each once is wanted")
    return found
