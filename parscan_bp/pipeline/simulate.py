"""`simulate`: a tick table run on one device, the reference for every other executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.pipeline.pipe import Pipe
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.run_arguments import checked
from parscan_bp.pipeline.schedules import Schedule, Task
from parscan_bp.types import Array, PyTree


class Trained(NamedTuple):
    """What a run leaves.

    Attributes:
      params: of each block.
      states: of each block.
      optimiser_states: of each block; that of all blocks comes first, and () for the others.
      losses: (batches,), of each batch when it passed, the mean over its parts.
    """

    params: list[PyTree]
    states: list[PyTree]
    optimiser_states: list[PyTree]
    losses: Array


def simulate(
    blocks: Sequence[Any],
    schedule: Schedule,
    optimiser: Optimiser,
    loss: Loss,
    params: Sequence[PyTree],
    batches: Sequence[tuple[PyTree, PyTree]],
    *,
    states: Sequence[PyTree] | None = None,
    optimiser_states: Sequence[PyTree] | None = None,
    key: Array | None = None,
    weight: Callable[[PyTree], Any] | None = None,
    observe: Callable[[Task, Pipe], None] | None = None,
) -> Trained:
    """Trains a network with the schedule of a pipeline, task by task, on one device.

    Every pass reads the weights that the `Table` names. A block that is linearised again sees the
    random key and the state of the batch's own forward pass, and drops the new state: statistics
    of batch norm move once a batch, by the mean over its parts. Labels come to the last block with
    their batch. A batch's gradient is the mean of those of its parts, by their weights.

    Every block has an optimiser state of its own, as on a device of its own, if the update of a
    block depends on nothing of the others. An optimiser that wants all gradients at once, such as
    clipping by the global norm or `optax.apply_if_finite`, or has labels or a mask for the list of
    all blocks, is given that list at the end of each batch; of a schedule that updates all blocks
    from one batch, and no other.

    Args:
      blocks: K of what `as_block` takes.
      schedule: the schedule.
      optimiser: of optax, or any pair ``(init, update)`` with its contract.
      loss: (output of the last block, labels) -> scalar, a mean over the batch. If there are parts,
        that of the first batch is compared with theirs.
      params: of each block.
      batches: N pairs (x, labels), the leading axis of every array the batch. Only those that the
        pipeline has reached are asked for, in their order, so that they may be made on demand.
      states: of each block; ``None`` if there are none.
      optimiser_states: of each block, to go on with a run; ``None`` starts afresh.
      key: random key for the blocks; ``None`` is ``jax.random.key(0)``.
      weight: what a part of a batch counts, a function of its labels to a real scalar: the number
        of valid rows or tokens, for a loss that is a mean over those alone. The loss of the batch
        is then sum_i weight_i loss_i / sum_i weight_i, and gradients alike. ``None`` counts all
        parts alike.
      observe: called after each task with the task and the `Pipe`, to look at weights, gradients
        and what is held.

    Returns:
      Parameters, states and losses, once the pipeline is empty.

    Raises:
      TypeError: if an argument is of another kind.
      ValueError: if there are not as many params or states as blocks, a block does not take what
        the one below makes, the loss is no scalar, a batch cannot be divided into the schedule's
        parts, the loss of the first batch is not the mean of theirs, or the schedule is longer than
        the data.
      NotImplementedError: if the optimiser's update of one block depends on the gradient of
        another one, as with clipping by the global norm, and blocks are updated from different
        batches.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> blocks = [lambda w, x: w * x] * 3
      >>> error = lambda y, labels: jnp.mean((y - labels) ** 2)
      >>> batches = [(jnp.ones(4), jnp.full(4, 2.0))] * 30
      >>> run = pb.pipeline.simulate(
      ...     blocks, pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), optax.sgd(0.05), error,
      ...     [jnp.ones(())] * 3, batches)
      >>> bool(run.losses[-1] < 0.1 * run.losses[0])
      True
    """
    given = checked(
        blocks, schedule, optimiser, loss, params, batches, states, optimiser_states, key, weight
    )
    if observe is not None and not callable(observe):
        raise TypeError(
            f"observe: got {described(observe)}; a function (task, pipe), or None, is wanted"
        )
    table = given.table
    pipe = Pipe(given)
    for at, task in enumerate(table.tasks):
        pipe.run(at, task)
        if observe is not None:
            observe(task, pipe)
    losses = [jnp.mean(jnp.stack(pipe.losses[n])) for n in range(table.batches)]
    newest = [pipe.newest(k) for k in range(table.blocks)]
    return Trained(newest, pipe.states, pipe.optimiser_states, jnp.stack(losses))
