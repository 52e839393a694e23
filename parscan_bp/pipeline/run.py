"""`run`: a network trained with the schedule of a pipeline, by any executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parscan_bp.arguments import check_kind, described
from parscan_bp.pipeline.executors import Executor, Simulated, Trained
from parscan_bp.pipeline.job import Batches, Job
from parscan_bp.pipeline.parts import Weight
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.remedies import Remedy
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.types import Array, PyTree


def run(
    blocks: Sequence[Any],
    schedule: Schedule,
    optimiser: Optimiser,
    loss: Loss,
    params: Sequence[PyTree],
    batches: Batches,
    *,
    executor: Executor = Simulated(),  # noqa: B008
    states: Sequence[PyTree] | None = None,
    optimiser_states: Sequence[PyTree] | None = None,
    key: Array | None = None,
    weight: Weight | None = None,
    remedies: Sequence[Remedy] = (),
) -> Trained:
    """Trains a network with the schedule of a pipeline.

    Every pass reads the weights that the `Table` names. A block that is linearised again sees the
    random key and the state of the batch's own forward pass, and drops the new state: statistics
    of batch norm move once a batch, by the mean over its parts, integers and keys with every part.
    Labels come to the last block with their batch. A batch's gradient is the mean of those of its
    parts, by their weights.

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
      executor: who runs it where: `Simulated`, `Threads`, `Spmd`, `Processes`, or one of your own.
      states: of each block; ``None`` if there are none.
      optimiser_states: of each block, to go on with a run; ``None`` starts afresh.
      key: random key for the blocks; ``None`` is ``jax.random.key(0)``.
      weight: what a part of a batch counts, a function of its labels to a real scalar: the number
        of valid rows or tokens, for a loss that is a mean over those alone. The loss of the batch
        is then sum_i weight_i loss_i / sum_i weight_i, and gradients alike. ``None`` counts all
        parts alike.
      remedies: what is done about late gradients, in this order, to each block whose forward pass
        is d_k >= 1 updates late in a full pipeline (m_k of `DSP`), and to no other: see `Remedy`.
        With w_k(v) the weights after v updates, and s_k what remedies and optimiser hold then, the
        forward pass of batch n reads ``predicted`` of w_k(v), v = max(0, n - d_k) with all of our
        schedules, and s_k(v); the update by batch n ``corrects`` its gradient with what was
        ``stored`` of these, and ``adjusts`` what the optimiser makes of it. A block that is
        linearised again reads its newest weights, as without. Such a block's optimiser state is a
        pair, the optimiser's and those of remedies, kept from run to run.

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
        batches; if a remedy predicts weights, and the schedule linearises a block again with late
        ones, as none of ours does; if the executor cannot run this schedule.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> blocks = [lambda w, x: w * x] * 3
      >>> error = lambda y, labels: jnp.mean((y - labels) ** 2)
      >>> batches = [(jnp.ones(4), jnp.full(4, 2.0))] * 30
      >>> run = pb.pipeline.run(
      ...     blocks, pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), optax.sgd(0.05), error,
      ...     [jnp.ones(())] * 3, batches)
      >>> bool(run.losses[-1] < 0.1 * run.losses[0])
      True
    """
    check_kind("executor", executor, Executor)
    job = Job(
        blocks,
        schedule,
        optimiser,
        loss,
        params,
        batches,
        states=states,
        optimiser_states=optimiser_states,
        key=key,
        weight=weight,
        remedies=remedies,
    )
    made = executor.run(job)
    if not isinstance(made, Trained):
        raise TypeError(
            f"executor: {described(executor)} returns {described(made)}; a Trained is wanted"
        )
    return made
