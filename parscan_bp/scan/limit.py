"""What a scan stores under ``memory_limit=``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from parscan_bp.jaxprs.read import names_axis
from parscan_bp.jaxprs.stage import Staged
from parscan_bp.linearise.body import Body
from parscan_bp.memory_limit import MemoryLimit
from parscan_bp.scan.linear_scan import LinearScan
from parscan_bp.scan.step import Step
from parscan_bp.scan.storage import Storage, StoredBytes, whole, within_limit
from parscan_bp.scan.values.base import Pass
from parscan_bp.trees import nbytes


def storage_of(
    step: Step,
    scan: LinearScan,
    extra: Sequence[Any],
    values: Pass,
    memory_limit: MemoryLimit | None,
) -> Callable[[int], Storage] | None:
    """What is stored of so many steps.

    Raises:
      ValueError: if nothing meets the limit.
    """
    if memory_limit is None or step.staged.symbolic_size is not None:
        return None
    costs = step.costs(scan, extra)
    if not values.in_steps:
        all_carries = Storage(step.length, costs)
        if all_carries.bytes > memory_limit.bytes:
            raise ValueError(
                f"memory_limit: got {memory_limit.bytes:,} bytes; a forward pass other than "
                f"'exact' has all carries at once, and takes about {all_carries.bytes:,}"
            )
        return None
    if not (scan.solver.place.is_one and scan.solver.exact):
        # A stretch of each device's steps is none of the scan's, and what is cut off of one is not
        # what is cut off of all.
        return functools.cache(functools.partial(whole, costs=costs, limit=memory_limit.bytes))
    storage = functools.cache(functools.partial(within_limit, costs=costs, limit=memory_limit))
    storage(step.length)  # raises here
    return storage


def storage_of_lax(staged: Staged, memory_limit: MemoryLimit | None) -> Storage | None:
    """What `lax.scan` stores under a limit: of a step, no more than all values that it makes.

    Raises:
      NotImplementedError: if nothing is known of that, or a step cannot be made again.
    """
    if memory_limit is None or staged.equation.params["length"] == 0:
        return None
    why = staged.symbolic_size
    effects = [effect for effect in staged.body.effects if not names_axis(effect)]
    why = f"the step has effects, {effects[0]}, and would have them again" if effects else why
    if why is not None:
        raise NotImplementedError(f"memory_limit: got {memory_limit.bytes:,}; {why}")
    body = Body.of_scan(staged.equation)
    carry = nbytes(list(body.carry_avals))
    costs = StoredBytes(carry, carry + body.nbytes, body.x_bytes, body.const_bytes, lambda n: 0)
    stored = within_limit(staged.equation.params["length"], costs, memory_limit)
    return stored if stored.sizes else None
