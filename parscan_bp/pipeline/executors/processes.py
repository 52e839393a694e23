"""A tick table over several processes, each with some of the blocks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from parscan_bp.arguments import check_kind
from parscan_bp.pipeline.executors.base import Executor, Trained
from parscan_bp.pipeline.executors.wires import Outputs, Wires
from parscan_bp.pipeline.executors.workers import Workers
from parscan_bp.pipeline.job import Job


@dataclasses.dataclass(frozen=True)
class Processes(Executor):
    """`Threads` with the blocks in several processes of `jax.distributed`.

    Every process calls `run` with the same arguments, and has a thread for each of its blocks, on
    its first device. Outputs and error gradients go from process to process point to point, by
    `jax.experimental.transfer`: a collective in each tick would be a barrier, and make everybody
    wait for a straggler whom only its neighbours need. Of the batches the first process reads the
    data, the last one the labels. What `run` returns is of the `blocks_here` only; the losses are
    those of all batches in the process of the last block, none elsewhere.

    Args:
      host: address of this machine to the others.

    Raises:
      TypeError: if ``host`` is no string.
      ValueError: by `run`, if there are more processes than blocks.
      NotImplementedError: by `run`, for schedules in lockstep, whose blocks wait for each other in
        every tick; if this JAX has no transfer between processes here, with the reason.
      Exception: what a block raised in its thread. The other processes wait then:
        `parscan_bp.parallel.launch` ends them.

    Example:
      >>> import parscan_bp as pb
      >>> pb.pipeline.Processes().blocks_here(3)  # there is no other process
      range(0, 3)
    """

    host: str = "127.0.0.1"

    def __post_init__(self):
        check_kind("host", self.host, str)

    def blocks_here(self, blocks: int) -> range:
        """Those of this process: neighbours, as many in each as can be."""
        return _blocks_of(jax.process_index(), blocks)

    def run(self, job: Job) -> Trained:
        table, processes = job.table, jax.process_count()
        if processes > table.blocks:
            raise ValueError(
                f"blocks: got {table.blocks} for {processes} processes; at least one each is wanted"
            )
        pairs, runs, outputs = job.pairs(0), job.block_runs(), Outputs()
        if table.lockstep:
            raise NotImplementedError(
                f"schedule: the blocks of {table.name} wait for each other at the end of every "
                "tick; processes only wait for what they need. executor=Threads() runs it"
            )
        owner = [p for p in range(processes) for _ in _blocks_of(p, table.blocks)]
        mine = self.blocks_here(table.blocks)
        runs = [runs[k] for k in mine]
        workers = Workers(
            runs,
            [jax.local_devices()[0]] * len(runs),
            table.parts,
            lockstep=False,
            lasts=lambda task, took: took,
            reach=lambda mail: Wires(mail, owner, table.parts, outputs, job.params, self.host),
        )
        workers.give(due for due in job.due() if due[0].block in mine)
        for n in range(table.batches):
            pairs = pairs if n == 0 else job.pairs(n)
            outputs.tell(n, [y for y, _ in job.network.outputs(pairs[0][0])])
            workers.enter(n, pairs)
        last = table.blocks - 1 in mine
        losses = [workers.loss(n) for n in range(table.batches)] if last else []
        workers.idle()
        # Others may still be pulling what was made here.
        multihost_utils.sync_global_devices("pipeline done")
        workers.close()
        return Trained.of(runs, jnp.stack(losses) if losses else jnp.zeros(0))


def _blocks_of(process: int, blocks: int) -> range:
    processes = jax.process_count()
    return range(blocks * process // processes, blocks * (process + 1) // processes)
