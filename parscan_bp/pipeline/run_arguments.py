"""What all executors are given beside blocks and parameters, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from parscan_bp.arguments import check_key, check_kind, described
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.fitting import as_blocks, check_batch, check_fit, one_each
from parscan_bp.pipeline.parts import Weighed, Weight, check_parts, check_weight
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.schedules import Schedule, Table
from parscan_bp.pipeline.updating import schedule_for
from parscan_bp.types import Array, PyTree

Batches = Sequence[tuple[PyTree, PyTree]]


class RunArguments(NamedTuple):
    """What a run of several blocks is given, checked.

    Attributes:
      blocks: the blocks.
      table: what they do.
      optimiser, batches: as they came.
      loss: of a part.
      weight: of a part; ``None`` if all parts count alike, or there is one.
      params, states: of each.
      optimiser_states: of each; ``None`` for fresh ones.
      key: random key.
    """

    blocks: list[Block]
    table: Table
    optimiser: Optimiser
    loss: Loss
    weight: Weight | None
    batches: Batches
    params: list[PyTree]
    states: list[PyTree]
    optimiser_states: list[PyTree] | None
    key: Array

    def pairs(self, number: int) -> list[tuple[PyTree, PyTree]]:
        """The parts of a batch; of the first one they are compared with what they are made for."""
        table, batch = self.table, self.batches[number]
        pairs = check_batch(number, batch, table.parts, table.name, self.weight)
        if number == 0:
            start = self.params, self.states, self.key
            check_fit(self.blocks, self.loss, pairs[0], *start)
            check_parts(self.blocks, self.loss, pairs, *start)
        return pairs


def checked(
    blocks: Sequence[Any],
    schedule: Any,
    optimiser: Any,
    loss: Any,
    params: Sequence[PyTree],
    batches: Batches,
    states: Sequence[PyTree] | None,
    optimiser_states: Sequence[PyTree] | None,
    key: Array | None,
    weight: Any,
) -> RunArguments:
    """The arguments of `simulate`, with its errors."""
    blocks = as_blocks("blocks", blocks)
    check_run(schedule, optimiser, loss, weight)
    check_batches(batches)
    table = schedule.table(len(blocks), len(batches))
    params = one_each("params", params, len(blocks))
    states = [()] * len(blocks) if states is None else one_each("states", states, len(blocks))
    key = as_key(key)
    updated = schedule_for(schedule, optimiser, params)
    if updated is not schedule:
        table = updated.table(len(blocks), len(batches))
    if optimiser_states is not None:
        optimiser_states = one_each("optimiser_states", optimiser_states, len(blocks))
    weight, loss = weighed(loss, weight, table.parts)
    return RunArguments(
        blocks, table, optimiser, loss, weight, batches, params, states, optimiser_states, key
    )


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
