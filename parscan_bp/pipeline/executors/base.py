"""What an executor is: who runs a tick table, where."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

from parscan_bp.pipeline.block_run import BlockRun
from parscan_bp.pipeline.job import Job
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

    @classmethod
    def of(cls, runs: Sequence[BlockRun], losses: Array) -> Trained:
        """What blocks hold once all is done."""
        params, states = [own.newest for own in runs], [own.state for own in runs]
        return cls(params, states, [own.optimiser_state for own in runs], losses)


class Executor(abc.ABC):
    """Who does the tasks of a `Table`, and on which devices: one method.

    All executors compute the same numbers, those of `Simulated`; what they differ in is where each
    block is, and when it does what. One of your own is a subclass; most are made of
    `Job.block_runs`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> class Announced(pb.pipeline.Executor):
      ...     def run(self, job):
      ...         print(job.table.blocks, "blocks,", job.table.batches, "batches")
      ...         return pb.pipeline.Simulated().run(job)
      >>> run = pb.pipeline.run(
      ...     [lambda w, x: w * x], pb.pipeline.PipeDream(), optax.sgd(0.1),
      ...     lambda y, labels: jnp.mean((y - labels) ** 2), [jnp.ones(())],
      ...     [(jnp.ones(4), jnp.ones(4))] * 3, executor=Announced())
      1 blocks, 3 batches
    """

    @abc.abstractmethod
    def run(self, job: Job) -> Trained:
        """Runs all of ``job.table``.

        Args:
          job: what `run` was given, checked.

        Returns:
          Parameters, states and losses, once the pipeline is empty.

        Raises:
          NotImplementedError: if the executor cannot run such a table or such blocks; says why.
        """
