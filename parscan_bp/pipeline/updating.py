"""Whether an optimiser updates block by block, or all blocks in one step."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from parscan_bp.pipeline.optimiser_state import start_state
from parscan_bp.pipeline.programs import Optimiser
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.pipeline.schedules.together import Together
from parscan_bp.pipeline.separable import why_not_separable
from parscan_bp.types import PyTree


def schedule_for(schedule: Schedule, optimiser: Optimiser, params: Sequence[PyTree]) -> Schedule:
    """The schedule with which the optimiser runs as it would without a pipeline.

    Where the update of a block depends on nothing of the others, and the optimiser takes the
    parameters of a block, each block is updated by itself: that is the schedule itself. Otherwise
    the optimiser is given the list of all blocks' gradients at once, which is `Together`.

    Args:
      schedule: the schedule.
      optimiser: a pair (init, update).
      params: of each block.

    Raises:
      TypeError, ValueError: if the optimiser takes neither the parameters of a block nor all.
      NotImplementedError: if it has to be given all at once, and does not take them; or the
        schedule updates blocks while passes of other batches are on the way.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> from parscan_bp.pipeline.updating import schedule_for
      >>> params = [jnp.ones(2), jnp.ones(3)]
      >>> clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
      >>> schedule_for(pb.pipeline.GPipe(2), clipped, params).together
      True
      >>> try:
      ...     schedule_for(pb.pipeline.PipeDream(), clipped, params)
      ... except NotImplementedError as error:
      ...     print(str(error).partition(",")[0])
      optimiser: the update of stage 0 depends on the gradient of stage 1
    """
    refused = next(
        filter(None, (_refusal(optimiser, k, own) for k, own in enumerate(params))), None
    )
    why = None if refused else why_not_separable(optimiser, params)
    if not refused and why is None:
        return schedule
    whole = _refusal(optimiser, None, list(params))
    if refused and (whole or len(params) < 2):
        raise refused
    if why is None:
        why = f"it takes the params of all {len(params)} blocks, not those of one"
    if any(late != (0, 0) for late in schedule.staleness(len(params))):
        raise NotImplementedError(
            f"optimiser: {why}, as where a global norm is taken, or all have to be finite; "
            f"{schedule} updates each block by itself, while passes of other batches are on the "
            "way. Wanted is an optimiser that takes the params of one block, and whose update "
            "depends on nothing of the others; or a schedule that updates all blocks from one "
            "batch (BackPropagation, GPipe, OneFOneB, InterleavedOneFOneB, ZeroBubble), which runs "
            "this one, too"
        )
    if whole:
        raise NotImplementedError(
            f"optimiser: {why}, so that it has to be given the params of all blocks at once, in a "
            "list, but it does not take them: labels and masks for all blocks are wanted, such as "
            f"[mask] * {len(params)}. It says: {whole.__cause__ or whole}"
        )
    return Together(schedule)


def _refusal(optimiser: Optimiser, block: int | None, params: PyTree) -> Exception | None:
    try:
        jax.eval_shape(lambda own: start_state(optimiser, block, own), params)
    except (TypeError, ValueError) as error:
        return error
    return None
