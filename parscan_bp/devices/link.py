"""What goes between devices takes time: a latency and a bandwidth, measured and remembered."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import statistics
import time
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parscan_bp import store
from parscan_bp.arguments import as_int, check_kind, check_number, check_positive, described
from parscan_bp.device_kind import device_kind
from parscan_bp.measured import measured


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a device takes part in.

    Attributes:
      collectives: how many there are, one after the other.
      bytes: what it receives in all of them.
    """

    collectives: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Link:
    """What a message between devices takes: a latency, and its bytes at a rate.

    Args:
      latency: seconds before the first byte arrives, at least 0.
      bandwidth: bytes/s, above 0; infinite where bytes cost nothing.

    Raises:
      TypeError, ValueError: if one is none such.

    Example:
      >>> Link(latency=1.0, bandwidth=2.0).seconds(Traffic(collectives=3, bytes=4))
      5.0
    """

    latency: float
    bandwidth: float

    def __post_init__(self):
        check_number("latency", self.latency)
        check_positive("bandwidth", self.bandwidth, math.inf)

    def seconds(self, traffic: Traffic) -> float:
        """Of one collective after the other."""
        return traffic.collectives * self.latency + traffic.bytes / self.bandwidth


def as_link(link: Link | None) -> Link:
    """The link that was named; ``None`` is the `known_link`.

    Raises:
      TypeError: if it is none.
    """
    if link is not None:
        check_kind("link", link, Link)
    return link or known_link()


def known_link() -> Link:
    """What was measured between the devices of this machine (`measure_link`), or else between four
    virtual devices of one CPU, which is said in ``choice/data/cpu.json``.

    Example:
      >>> known_link().latency > 0
      True
    """
    return _known(store.folder(), store.generation())


@functools.lru_cache(maxsize=1)
def _known(folder: pathlib.Path | None, generation: Hashable) -> Link:
    """What the folder has; read once, as every eager call would read it."""
    known = store.read(_key(), _parsed)
    if known is not None:
        return known
    held = measured("cpu")["link"]
    return Link(held["latency"], held["bandwidth"])


def _key() -> str:
    return "\n".join(["link between devices", device_kind(), f"jax {jax.__version__}"])


def _parsed(held: Mapping[str, Any]) -> Link:
    return Link(**held["link"])


def measure_link(mesh: Mesh, *, words: int = 1 << 20, repeats: int = 20) -> Link:
    """The latency and bandwidth of all-gathers over all devices of a mesh, measured and remembered:
    ``Sharded(method="auto")``, `best_grid` and `explain_grid` reckon with them from then on.

    The latency is the median time of a gather of one word from each device, over its ceil(log2 P)
    steps; the bandwidth (P - 1) / P of the bytes of a large one over the time that it takes beside.
    Virtual devices of one machine measure its memory. Where there are several processes, all
    remember the numbers of the slowest, so that they choose alike.

    Args:
      mesh: of at least two devices.
      words: float32 numbers of each device in the large gather.
      repeats: of each gather.

    Returns:
      The link. ``link=`` takes it by name. Where it cannot be remembered, a warning says so.

    Raises:
      TypeError: if ``mesh`` is none.
      ValueError: if the mesh has one device, or ``words`` is less than 2.
      RuntimeError: if the large gather took no longer than the small one.

    Source: Gholami et al., "Integrated model, batch and domain parallelism in training neural
    networks", SPAA 2018, below eq. 3.

    Example:
      >>> import jax, parscan_bp as pb
      >>> mesh = jax.sharding.Mesh(jax.devices(), "all")
      >>> link = pb.parallel.measure_link(mesh)  # doctest: +SKIP
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: got {described(mesh)}; a jax.sharding.Mesh is wanted")
    devices = mesh.size
    words, repeats = as_int("words", words, 2), as_int("repeats", repeats)
    if devices < 2:
        raise ValueError(f"mesh: got one of {devices} device; at least two are wanted")
    small, large = (_gather_seconds(mesh, count, repeats) for count in (1, words))
    if jax.process_count() > 1:
        small, large = map(float, np.max(multihost_utils.process_allgather((small, large)), axis=1))
    if large <= small:
        raise RuntimeError(
            f"words: a gather of {words} words from each device took {large:.2g} s, of 1 word "
            f"{small:.2g} s; more words are wanted"
        )
    steps = (devices - 1).bit_length()
    link = Link(small / steps, 4 * (words - 1) * (devices - 1) / (large - small))
    store.write(_key(), {"link": dataclasses.asdict(link)})
    return link


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
