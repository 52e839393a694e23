"""Scans over several devices: what goes from one to another, and how much of it.

`parscan_bp.Sharded` is the solver. Inside `jax.shard_map` and `jax.pmap` it differentiates as JAX's
own collectives do: the last carry, which all devices have, is a ``psum``. Where types say what
differs from device to device (`jax.shard_map`), gradients are those of the whole program. In
`jax.pmap` and with ``check_vma=False``, `jax.grad` of a loss on each device is the gradient of
their sum over the devices: a loss of the last carry counts P times, unless it is divided by P, and
the gradient of what all devices share is to be summed over them.
"""

from parscan_bp.devices import Link as Link
from parscan_bp.parallel.launch import LaunchError as LaunchError
from parscan_bp.parallel.launch import launch as launch
from parscan_bp.parallel.stats import Collectives as Collectives
from parscan_bp.parallel.stats import collective_stats as collective_stats

__all__ = ["Collectives", "LaunchError", "Link", "collective_stats", "launch"]
