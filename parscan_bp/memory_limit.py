"""How much a derivative may store, and where."""

from __future__ import annotations

import dataclasses

import jax

from parscan_bp.arguments import as_int, check_bool, set_ints

HOST = "pinned_host"
"""JAX's name of the host's memory that a device copies to and from by itself."""


@dataclasses.dataclass(frozen=True)
class MemoryLimit:
    """What a derivative may store: ``memory_limit=`` of `parscan_bp.scan`, an int or one of these.

    With stretches of n of T steps and c bytes of a carry, T / n carries are stored. With
    ``offload`` they are in the host's memory, and of the device's there are two at a time:

        (T / n) c   becomes   2 c,   and (T / n) c of the host's

    A carry is copied out while the next stretch is made, and back before its own is made again. Of
    several levels of stretches, the outermost one's carries are. Where the limit is met without
    stretches, nothing is.

    Args:
      bytes: of the device's memory, an int.
      offload: whether the carries that enter stretches are kept by the host. On a CPU there is no
        other memory, and `parscan_bp.scan` refuses it.

    Raises:
      TypeError, ValueError: if one is no such value.

    Example:
      >>> import parscan_bp as pb
      >>> pb.MemoryLimit(10_000_000, offload=True).bytes
      10000000
    """

    bytes: int
    offload: bool = False

    def __post_init__(self) -> None:
        set_ints(self, bytes=1)
        check_bool("offload", self.offload)


def as_limit(memory_limit: int | MemoryLimit | None) -> MemoryLimit | None:
    """The limit that an argument ``memory_limit=`` is.

    Raises:
      TypeError, ValueError: if it is none.
      NotImplementedError: if the host cannot store anything for this process's devices.
    """
    if memory_limit is None:
        return None
    if not isinstance(memory_limit, MemoryLimit):
        return MemoryLimit(as_int("memory_limit", memory_limit))
    why = _no_host() if memory_limit.offload else None
    if why is not None:
        raise NotImplementedError(f"memory_limit: got {memory_limit}; {why}")
    return memory_limit


def as_bytes(memory_limit: int | MemoryLimit | None, of: str) -> int | None:
    """The bytes that an argument ``memory_limit=`` is, where nothing can be offloaded.

    Args:
      memory_limit: the argument.
      of: why nothing is, as the error says it.

    Raises:
      TypeError, ValueError: if it is none.
      NotImplementedError: for ``offload=True``.
    """
    if not isinstance(memory_limit, MemoryLimit):
        return None if memory_limit is None else as_int("memory_limit", memory_limit)
    if memory_limit.offload:
        raise NotImplementedError(
            f"memory_limit: got {memory_limit}; {of}; an int of bytes is wanted"
        )
    return memory_limit.bytes


def _no_host() -> str | None:
    """Why carries cannot be offloaded here, if they cannot."""
    backend = jax.default_backend()
    if backend == "cpu":
        return "on a CPU the host's memory is all there is, so that nothing would be saved"
    kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
    if HOST not in kinds:
        return f"a device of {backend} has the memories {', '.join(kinds)}; {HOST} is wanted"
    return None
