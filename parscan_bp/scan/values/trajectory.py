"""A loop that hands on its carries, as the differentiation rule keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parscan_bp.linearise.body import Body
from parscan_bp.originals import lax_scan
from parscan_bp.types import Array


def run_with_trajectory(
    body: Body,
    consts: Sequence[Array],
    init: Sequence[Array],
    xs: Sequence[Array],
    *,
    length: int,
    reverse: bool,
    unroll: int,
    keep: Callable[..., list[Array]] = lambda *_: [],
    scan: Callable = lax_scan,
) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
    """`lax.scan` of the body that also returns the carry after every step.

    A carry that is an output already (``y_t = x_t``, as in most recurrent cells) is not
    stored twice.

    Args:
      body, consts, init, xs, length, reverse, unroll: the scan.
      keep: what else is kept of a step, from its carry, its input, its new carry and its output.
      scan: makes the steps, as `jax.lax.scan`.

    Returns:
      ``(carry, ys, after, kept)``; ``after[k]`` is carry leaf k after each step.
    """
    own = [k for k in range(body.num_carry) if k not in body.forwarded.values()]

    def step(carry, x):
        new, y = body(consts, carry, x)
        return new, (y, [new[k] for k in own], keep(carry, x, new, y))

    carry, (ys, stored, kept) = scan(
        step, list(init), list(xs), length=length, reverse=reverse, unroll=unroll
    )
    after = dict(zip(own, stored, strict=True))
    after.update({k: ys[j] for j, k in body.forwarded.items()})
    return carry, ys, [after[k] for k in range(body.num_carry)], kept
