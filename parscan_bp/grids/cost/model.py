"""A machine's latency and bandwidth, and the two ways to reckon with them."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parscan_bp.arguments import as_int, check_finite, described
from parscan_bp.devices import Link
from parscan_bp.grids.cost.paper import Paper
from parscan_bp.grids.cost.program import Program


@dataclasses.dataclass(frozen=True)
class CostModel:
    """What communication costs on a machine: alpha seconds a message, beta seconds a byte.

    `paper` has the equations 3 to 9 as they are printed; `program` what the programs of a
    `parallel.Stack` really send, collective by collective. The two count different bytes, and are
    never mixed.

    Args:
      alpha: latency in seconds.
      beta: inverse bandwidth in seconds a byte.

    Raises:
      TypeError, ValueError: if one is no finite number of at least 0.

    Source: Gholami et al. 2018, section 2.2; Thakur, Rabenseifner, Gropp 2005.

    Example:
      >>> import parscan_bp as pb
      >>> pb.parallel.CORI_KNL.alpha
      2e-06
    """

    alpha: float
    beta: float

    def __post_init__(self):
        check_finite("alpha", self.alpha)
        check_finite("beta", self.beta)

    @property
    def paper(self) -> Paper:
        """The equations."""
        return Paper(self.alpha, self.beta)

    @property
    def program(self) -> Program:
        """The compiled programs."""
        return Program(self.alpha, self.beta)

    @property
    def link(self) -> Link:
        """The same machine for ``Sharded(link=)``.

        Example:
          >>> import parscan_bp as pb
          >>> pb.parallel.CORI_KNL.link == pb.parallel.Link()
          True
        """
        return Link(self.alpha, 1 / self.beta if self.beta else math.inf)


CORI_KNL = CostModel(2e-6, 1 / 6e9)
"""NERSC's Cori, Intel KNL: Table 1 of Gholami et al. 2018."""


def measure_alpha_beta(mesh: Mesh, *, words: int = 1 << 20, repeats: int = 20) -> CostModel:
    """The latency and bandwidth of all-gathers over all devices of a mesh, measured.

    alpha is the median time of a gather of one word from each device, over its ceil(log2 P) steps;
    beta what a large one takes beside, over (P - 1) / P of its bytes. Virtual devices of one
    machine measure its memory.

    Args:
      mesh: of at least two devices.
      words: float32 numbers of each device in the large gather.
      repeats: of each gather.

    Raises:
      TypeError: if ``mesh`` is none.
      ValueError: if the mesh has one device, or ``words`` is less than 2.
      RuntimeError: if the large gather took no longer than the small one.

    Source: Gholami et al. 2018, below eq. 3.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: got {described(mesh)}; a jax.sharding.Mesh is wanted")
    devices = mesh.size
    words, repeats = as_int("words", words, 2), as_int("repeats", repeats)
    if devices < 2:
        raise ValueError(f"mesh: got one of {devices} device; at least two are wanted")
    small, large = (_gather_seconds(mesh, count, repeats) for count in (1, words))
    if large <= small:
        raise RuntimeError(
            f"words: a gather of {words} words from each device took {large:.2g} s, of 1 word "
            f"{small:.2g} s; more words are wanted"
        )
    steps = (devices - 1).bit_length()
    return CostModel(small / steps, (large - small) / (4 * (words - 1) * (devices - 1)))


def _gather_seconds(mesh: Mesh, words: int, repeats: int) -> float:
    """The median time of an all-gather of so many words of each device."""
    axes = tuple(mesh.axis_names)

    def gather(x):
        return lax.all_gather(x, axes, tiled=True, to="invarying")

    run = jax.jit(
        jax.shard_map(gather, mesh=mesh, in_specs=PartitionSpec(axes), out_specs=PartitionSpec())
    )
    sharding = NamedSharding(mesh, PartitionSpec(axes))
    whole = np.zeros(words * mesh.size, jnp.float32)
    x = jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])
    run(x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
