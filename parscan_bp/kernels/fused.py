"""A recurrence of any size in one kernel: padding, and what fits on chip."""

from __future__ import annotations

from parscan_bp.kernels.padding import pad_size
from parscan_bp.kernels.recurrence import recurrence
from parscan_bp.kernels.rule import Rule
from parscan_bp.kernels.tiles import fused_tile


def fused_recurrence(rule: Rule, v, weights, first, *, reverse: bool = False, interpret=None):
    """`recurrence` for any T, B, H of at least 1.

    Args:
      rule, v, weights, first, reverse, interpret: see `recurrence`.

    Returns:
      As `recurrence`.

    Raises:
      NotImplementedError: if the weights do not fit on chip, see `largest_hidden`.
    """
    size = v.shape[-1]
    check_hidden(rule, size, weights.dtype.itemsize)
    weights = pad_size(pad_size(weights, -1), -2)
    v, first = pad_size(v, -1), pad_size(first, -1)
    out, sums = recurrence(rule, v, weights, first, reverse=reverse, interpret=interpret)
    if sums is not None:
        products, vectors = sums
        sums = products[:, :size, :size], vectors[:, :size]
    return out[..., :size], sums


def check_hidden(rule: Rule, size: int, itemsize: int) -> None:
    """Raises where the weights of a rule do not fit on chip."""
    most = largest_hidden(rule, itemsize)
    if size > most:
        raise NotImplementedError(
            f"hidden: got {size}; the weights of {rule.name} stay on chip up to {most} "
            f"units of {itemsize} bytes; forward='exact' takes any size"
        )


def largest_hidden(rule: Rule, itemsize: int) -> int:
    """The most units H whose weights fit on chip, in float32 (4 bytes) or bfloat16 (2)."""
    return max(h for h in range(4, 257, 4) if fused_tile(rule, h, 1, itemsize).fits)
