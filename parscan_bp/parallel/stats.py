"""The collectives of a compiled program, read off its text."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

from parscan_bp.arguments import described

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "reduce-scatter",
)
"""XLA's operations in which several devices take part."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (.*)$")
_COLLECTIVE = re.compile(rf"^(.*?) ({'|'.join(KINDS)})(-start)?\(")
_CALLED = re.compile(
    r"(?:body|to_apply|calls|branch_computations|\w+_computation)=(\{.*?\}|[%\w.-]+)"
)
_TRIPS = re.compile(r'known_trip_count"?:\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Collectives:
    """All collectives of one kind.

    Attributes:
      count: how often one is executed.
      bytes: of their results on one device, together.
    """

    count: int
    bytes: int

    def __add__(self, other: Collectives) -> Collectives:
        return Collectives(self.count + other.count, self.bytes + other.bytes)


Stats = dict[str, Collectives]


def collective_stats(compiled: Any) -> Stats:
    """How many collectives a device takes part in, and what it gets by them.

    One in a loop counts as often as the loop runs. Of the branches of a conditional the one with
    the most bytes counts.

    Args:
      compiled: what ``jax.jit(f).lower(...).compile()`` returns.

    Returns:
      For each kind of XLA's collectives that is executed, `Collectives`. The result of an
      all-gather contains what the device had itself; those of a permutation and of a sum are what
      arrives.

    Raises:
      TypeError: if ``compiled`` is no compiled program.
      ValueError: if there are collectives in a loop of which XLA does not know how often it runs.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from jax.sharding import Mesh, PartitionSpec
      >>> mesh = Mesh(jax.devices()[:1], ("rows",))
      >>> total = lambda x: jax.lax.psum(x.sum(), "rows")
      >>> specs = {"in_specs": PartitionSpec("rows"), "out_specs": PartitionSpec()}
      >>> f = jax.shard_map(total, mesh=mesh, **specs)
      >>> pb.parallel.collective_stats(jax.jit(f).lower(jnp.ones(3)).compile())
      {'all-reduce': Collectives(count=1, bytes=4)}
    """
    if not hasattr(compiled, "as_text") or not hasattr(compiled, "runtime_executable"):
        raise TypeError(
            f"compiled: got {described(compiled)}; the result of jax.jit(f).lower(...).compile() "
            "is wanted"
        )
    computations, entry = _parsed(compiled.as_text())

    @functools.cache
    def of(name: str) -> tuple[tuple[str, Collectives], ...]:
        total: Stats = {}
        for line in computations.get(name, ()):
            for kind, found in _of_instruction(line, lambda name: dict(of(name))):
                total[kind] = total.get(kind, Collectives(0, 0)) + found
        return tuple(sorted(total.items()))

    return dict(of(entry))


def _parsed(text: str) -> tuple[dict[str, list[str]], str]:
    """The instructions of every computation, and the name of the one that is the program."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        instruction = _INSTRUCTION.match(line)
        if head and not line.startswith(" "):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif instruction and name:
            computations[name].append(instruction[1])
    return computations, entry


def _of_instruction(line: str, of) -> Iterator[tuple[str, Collectives]]:
    """The collectives of one instruction and of what it calls."""
    collective = _COLLECTIVE.match(line)
    if collective:
        shape, kind, start = collective.groups()
        yield kind, Collectives(1, _result_bytes(shape, kind, bool(start)))
        return
    called = [re.findall(r"[\w.-]+", names) for names in _CALLED.findall(line)]
    parts = [of(name) for names in called for name in names]
    if " while(" in line:
        trips = _TRIPS.search(line)
        if trips is None and any(parts):
            raise ValueError(
                "compiled: there are collectives in a loop of which XLA does not know how often it "
                f"runs: {line[:200]}"
            )
        times = int(trips[1]) if trips else 0
        parts = [
            {kind: Collectives(times * c.count, times * c.bytes) for kind, c in part.items()}
            for part in parts
        ]
    elif " conditional(" in line and parts:
        parts = [max(parts, key=lambda part: sum(c.bytes for c in part.values()))]
    for part in parts:
        yield from part.items()


def _result_bytes(shape: str, kind: str, start: bool) -> int:
    """Bytes of the result; one that starts has its operand in front, unless it is a sum."""
    if start and kind in ("all-gather", "collective-permute"):
        shape = _elements(shape)[1]
    return sum(map(_array_bytes, _ARRAY.findall(shape)))


def _elements(shape: str) -> list[str]:
    """The elements of a tuple's text."""
    found, depth = [""], 0
    for letter in shape.strip()[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def _array_bytes(array: tuple[str, str]) -> int:
    dtype, sizes = array
    bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    return math.prod(int(size) for size in sizes.split(",") if size) * bits // 8
