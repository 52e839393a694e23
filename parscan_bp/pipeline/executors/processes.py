"""A tick table over several processes, each with some of the blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from parscan_bp.pipeline.executors.mpmd import Threads, prepared, trained
from parscan_bp.pipeline.executors.stream import due_of
from parscan_bp.pipeline.executors.wires import Wires
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.run_arguments import checked
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.pipeline.simulate import Trained
from parscan_bp.types import Array, PyTree


def blocks_here(blocks: int) -> range:
    """The blocks of this process: neighbours, as many in each as can be.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.blocks_here(3)
      range(0, 3)
    """
    return blocks_of(jax.process_index(), jax.process_count(), blocks)


def blocks_of(process: int, processes: int, blocks: int) -> range:
    """Those of any process."""
    return range(blocks * process // processes, blocks * (process + 1) // processes)


def run_processes(
    blocks: Sequence[Any],
    schedule: Schedule,
    optimiser: Optimiser,
    loss: Loss,
    params: Sequence[PyTree],
    batches: Sequence[tuple[PyTree, PyTree]],
    *,
    states: Sequence[PyTree] | None = None,
    key: Array | None = None,
    weight: Callable[[PyTree], Any] | None = None,
    host: str = "127.0.0.1",
) -> Trained:
    """`run_mpmd` with the blocks in several processes of `jax.distributed`.

    Every process calls it with the same arguments, and has a thread for each of its blocks, on its
    first device. Outputs and error gradients go from process to process point to point, by
    `jax.experimental.transfer`: a collective in each tick would be a barrier, and make everybody
    wait for a straggler whom only its neighbours need.

    Args:
      blocks, schedule, optimiser, loss, params, states, key, weight: as in `run_mpmd`.
      batches: as in `simulate`, in every process; the first one reads the data, the last one the
        labels.
      host: address of this machine to the others.

    Returns:
      As `simulate`, but of the blocks in `blocks_here` only; the losses are those of all batches in
      the process of the last block, none elsewhere.

    Raises:
      TypeError, ValueError, NotImplementedError: as `simulate`.
      ValueError: if there are more processes than blocks.
      NotImplementedError: for schedules in lockstep, whose blocks wait for each other in every
        tick; if this JAX has no transfer between processes here, with the reason.
      Exception: what a block raised in its thread. The other processes wait then:
        `parscan_bp.parallel.launch` ends them.
    """
    given = checked(blocks, schedule, optimiser, loss, params, batches, states, None, key, weight)
    table = given.table
    if jax.process_count() > table.blocks:
        raise ValueError(
            f"blocks: got {table.blocks} for {jax.process_count()} processes; at least one each is "
            "wanted"
        )
    made, mine = prepared(given), blocks_here(table.blocks)
    if table.lockstep:
        raise NotImplementedError(
            f"schedule: the blocks of {table.name} wait for each other at the end of every tick; "
            "processes only wait for what they need. run_mpmd runs it"
        )
    each = range(jax.process_count())
    owner = [p for p in each for _ in blocks_of(p, len(each), table.blocks)]
    runs = [made.runs[k] for k in mine]
    device = jax.local_devices()[0]
    threads = Threads(
        runs,
        [device] * len(runs),
        table.parts,
        lockstep=False,
        lasts=lambda task, took: took,
        reach=lambda mail: Wires(mail, owner, table.parts, made.outputs, given.params, host),
    )
    threads.give(due for due in due_of(table.tasks) if due[0].block in mine)
    last = table.blocks - 1
    for n in range(table.batches):
        threads.enter(n, made.pairs if n == 0 else given.pairs(n))
    losses = [threads.loss(n) for n in range(table.batches)] if last in mine else []
    threads.idle()
    # Others may still be pulling what was made here.
    multihost_utils.sync_global_devices("pipeline done")
    threads.close()
    return trained(runs, jnp.stack(losses) if losses else jnp.zeros(0))
