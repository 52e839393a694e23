"""What a run of several blocks is given, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import jax

from parscan_bp.arguments import check_key, check_kind, described
from parscan_bp.pipeline.block_optimiser import block_optimisers
from parscan_bp.pipeline.block_run import BlockRun, block_runs
from parscan_bp.pipeline.blocks import Network
from parscan_bp.pipeline.fitting import as_blocks, check_batch, check_fit, one_each
from parscan_bp.pipeline.parts import Weighed, Weight, check_weight
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.remedies import Remedy
from parscan_bp.pipeline.remedies.apply import as_remedies
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.pipeline.schedules.table import Due, due_of
from parscan_bp.pipeline.updating import schedule_for
from parscan_bp.types import Array, PyTree

Batches = Sequence[tuple[PyTree, PyTree]]


@final
class Job:
    """All that `run` is given, but for who runs it; an `Executor` is given this.

    Args:
      blocks, schedule, optimiser, loss, params, batches, states, optimiser_states, key, weight,
        remedies: as in `run`.

    Attributes:
      blocks: K of them.
      table: the tick table, what they do.
      optimisers: of each block, with what is done about late gradients.
      loss, weight, batches: as they came.
      params, states: of each block.
      optimiser_states: of each block; ``None`` for fresh ones.
      key: random key of the run.

    Raises:
      TypeError, ValueError, NotImplementedError: as `run`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> job = pb.pipeline.Job(
      ...     [lambda w, x: w * x] * 2, pb.pipeline.PipeDream(), optax.sgd(0.1),
      ...     lambda y, labels: jnp.mean((y - labels) ** 2), [jnp.ones(())] * 2,
      ...     [(jnp.ones(4), jnp.ones(4))] * 3)
      >>> job.table.blocks, [run.number for run in job.block_runs()]
      (2, [0, 1])
    """

    def __init__(
        self,
        blocks: Sequence[Any],
        schedule: Schedule,
        optimiser: Optimiser,
        loss: Loss,
        params: Sequence[PyTree],
        batches: Batches,
        *,
        states: Sequence[PyTree] | None = None,
        optimiser_states: Sequence[PyTree] | None = None,
        key: Array | None = None,
        weight: Weight | None = None,
        remedies: Sequence[Remedy] = (),
    ):
        self.blocks = as_blocks("blocks", blocks)
        count = len(self.blocks)
        check_run(schedule, optimiser, loss, weight)
        check_batches(batches)
        schedule.table(count, len(batches))  # whether it is one of so many blocks and batches
        self.params = one_each("params", params, count)
        self.states = [()] * count if states is None else one_each("states", states, count)
        self.optimiser_states = (
            None
            if optimiser_states is None
            else one_each("optimiser_states", optimiser_states, count)
        )
        self.key = as_key(key)
        schedule = schedule_for(schedule, optimiser, self.params)
        self.table = schedule.table(count, len(batches))
        self.optimisers = block_optimisers(optimiser, as_remedies(remedies), schedule, count)
        self.loss, self.weight, self.batches = loss, weight, batches

    @property
    def network(self) -> Network:
        """The blocks with what they begin with."""
        return Network(self.blocks, self.params, self.states, self.key)

    def pairs(self, number: int) -> list[tuple[PyTree, PyTree]]:
        """What the first and the last block take of a batch: for each of its parts data and labels.

        Of the first batch they are compared with what blocks and loss take.

        Raises:
          TypeError, ValueError: as `run`, of a batch.
        """
        weight, loss = weighed(self.loss, self.weight, self.table.parts)
        pairs = check_batch(number, self.batches[number], self.table.parts, self.table.name, weight)
        if number == 0:
            check_fit(self.network, loss, pairs)
        return pairs

    def due(self) -> list[Due]:
        """All tasks in an order in which they can run, each with the versions of its block's
        weights that nobody reads after it."""
        return due_of(self.table.tasks)

    def block_runs(self) -> list[BlockRun]:
        """What each block holds at the start, and how a task changes it.

        ``own.run(task, post, unread)`` does what is `due`. It takes what it needs from
        ``post.take(what, where)`` and leaves what it makes to ``post.put(what, where, value)``,
        with ``where`` (block, batch, part); each value is taken once. An executor puts the
        `pairs` of a batch as the "output" of block -1 and the "labels" of block K - 1, and takes
        the "loss" of block K - 1.

        Raises:
          TypeError, ValueError: if the optimiser does not take the params or states.
        """
        _, loss = weighed(self.loss, self.weight, self.table.parts)
        return block_runs(self.network, self.table, self.optimisers, loss, self.optimiser_states)


def weighed(loss: Loss, weight: Weight | None, parts: int) -> tuple[Weight | None, Loss]:
    """The weight and the loss of a part, where there is more than one."""
    if weight is None or parts == 1:
        return None, loss
    return weight, Weighed(loss)


def check_run(schedule: Any, optimiser: Any, loss: Any, weight: Any) -> None:
    """Raises `TypeError` unless they are a schedule, a pair (init, update) and two functions.

    The pair and the loss have to have hashes; the weight may be ``None``.
    """
    check_weight(weight)
    check_kind("schedule", schedule, Schedule)
    if not all(callable(getattr(optimiser, name, None)) for name in ("init", "update")):
        raise TypeError(
            f"optimiser: got {described(optimiser)}; a pair (init, update), such as "
            "optax.sgd(0.1), is wanted"
        )
    if not callable(loss):
        raise TypeError(
            f"loss: got {described(loss)}; a function (output, labels) -> scalar is wanted"
        )
    for name, value in (("optimiser", optimiser), ("loss", loss)):
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{name}: got {described(value)}, which has no hash; one that has is wanted, "
                "programs are compiled once for it"
            ) from None


def check_batches(batches: Any) -> None:
    """Raises `TypeError` unless batches can be counted and asked for by their number."""
    if isinstance(batches, str | Mapping) or not all(
        hasattr(batches, name) for name in ("__len__", "__getitem__")
    ):
        raise TypeError(
            f"batches: got {described(batches)}; a sequence of pairs (x, labels) is wanted: "
            "list(batches), or a Pipeline, which is fed batch by batch"
        )


def as_key(key: Any) -> Array:
    """The random key of a run; ``None`` is ``jax.random.key(0)``.

    Raises:
      TypeError: if it is no key, or several.
    """
    if key is None:
        return jax.random.key(0)
    check_key("key", key)
    return key
