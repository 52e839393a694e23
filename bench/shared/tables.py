"""Plain text tables and the units in them."""

from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def padded(line: Sequence[str]) -> str:
        first = line[0].ljust(widths[0])
        rest = (entry.rjust(width) for entry, width in zip(line[1:], widths[1:], strict=True))
        return "  ".join([first, *rest])

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([padded(header), rule, *map(padded, rows)])


def seconds(value: float) -> str:
    """1.5 -> '1.50 s', 0.0015 -> '1.50 ms'."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-6:.1f} us"


def size(value: float) -> str:
    """Bytes in decimal units: 2_000_000 -> '2.0 MB'."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def speedup(comparison: dict[str, Any]) -> str:
    """A speedup with the ends of its interval."""
    return "{speedup:.2f} [{low:.2f}, {high:.2f}]".format(**comparison)


def is_resolved(comparison: dict[str, Any]) -> bool:
    """Whether the interval of a speedup is narrower than a factor of 2.

    A backward pass is a difference: where it is short beside the whole, that tells nothing.
    """
    return 0 < comparison["low"] and comparison["high"] < 2 * comparison["low"]


def resolved(comparison: dict[str, Any]) -> str:
    """A speedup with its interval, where that tells something."""
    return speedup(comparison) if is_resolved(comparison) else "not resolved"


def medians(comparison: dict[str, Any]) -> list[str]:
    """The times of the baseline and the candidate."""
    return [seconds(comparison[side]["median"]) for side in ("baseline", "candidate")]
