"""A tick table as one program for all stages: `jax.shard_map` over a mesh axis."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parscan_bp.arguments import described
from parscan_bp.devices import check_axis
from parscan_bp.pipeline.blocks import Block
from parscan_bp.pipeline.executors.base import Executor, Trained
from parscan_bp.pipeline.executors.instructions import instructions
from parscan_bp.pipeline.executors.stage_program import StageProgram
from parscan_bp.pipeline.executors.united import United
from parscan_bp.pipeline.fitting import (
    check_alike,
    check_batch,
    check_fit,
    check_one_shape,
    check_trained,
)
from parscan_bp.pipeline.job import Job, weighed
from parscan_bp.pipeline.optimiser_state import start_states
from parscan_bp.pipeline.parts import Weight, shares
from parscan_bp.pipeline.schedules import Table
from parscan_bp.trees import row
from parscan_bp.types import Array, PyTree


class SpmdProgram(NamedTuple):
    """A run as one program, and what it is called with.

    Attributes:
      run: jitted; ``run.lower(*arguments).compile()`` is what `collective_stats` reads. It returns
        weights, states and optimiser states with a leading axis of stages, and losses (stages,
        ticks), of which those of the last stage count.
      arguments: of it, on the devices.
    """

    run: Callable[..., Any]
    arguments: tuple[PyTree, ...]


@dataclasses.dataclass(frozen=True)
class Spmd(Executor):
    """K blocks of one shape by one program for all stages: block k is on stage k mod D.

    The stages are those of a mesh axis, and the program one `jax.lax.scan` over the ticks of the
    `Table`. A stage does what the table says in branches; at the end of a tick one permutation
    sends outputs up, another one error gradients down, and nothing else is sent; but for an
    optimiser that wants all gradients at once, for which every stage gathers them, and all weights,
    at the end of a batch, and holds the optimiser's state of all. What `Simulated` computes, to the
    last bit, but where XLA fuses otherwise what is in one larger program: seen of such optimisers,
    of `optax.MultiSteps`, of float16 and of parts of a single row, up to rounding; and with
    ``data``, as means are taken in another order.

    With remedies a stage has room for the optimiser's state once for each delay that a block has,
    and keeps the weights that forward passes have read until the update.

    All blocks are the same one, ``[block] * K``, whose y has the shape and dtype of x; their params
    are of the same shapes. So are all batches, which lie on every stage.

    Args:
      mesh: of devices, with the axis of the stages, along which it has D; K is a multiple of it.
      axis: its name.
      data: the axis over which the rows of every part of a batch are divided, if any: gradients
        are averaged over it before an update, the floats of states at the end. Each device's rows
        have a random key of their own then, and are a part of the batch.

    Raises:
      TypeError, ValueError: if ``mesh`` is none, or has no such axes. By `run`, if the mesh has
        no devices along ``axis`` for as many blocks each; blocks, parameters or
        batches differ, or rows cannot be divided.
      NotImplementedError: by `run`, if the schedule needs several hops, or several passes of one
        kind on a device, in one tick: `FeaturesReplay`, `DelayedGradients`, `DSP` with a p or q of
        0; with several blocks a device most but `InterleavedOneFOneB`. If one of your own updates
        weights before they are read in the same tick, or sums up two batches' gradients at once.

    Source: DSP (Xu, Huo, Huang), section 3, for the queues.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np, optax
      >>> import parscan_bp as pb
      >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("stage",))
      >>> run = pb.pipeline.run(
      ...     [lambda w, x: w * x], pb.pipeline.GPipe(2), optax.sgd(0.1),
      ...     lambda y, labels: jnp.mean((y - labels) ** 2), [jnp.ones(())],
      ...     [(jnp.ones(4), jnp.full(4, 2.0))] * 30, executor=pb.pipeline.Spmd(mesh))
      >>> round(float(run.params[0]), 2)
      2.0
    """

    mesh: Mesh
    axis: str = "stage"
    data: str | None = None

    def __post_init__(self):
        if not isinstance(self.mesh, Mesh):
            raise TypeError(f"mesh: got {described(self.mesh)}; a jax.sharding.Mesh is wanted")
        check_axis(self.axis, self.mesh)
        if self.data is not None:
            check_axis(self.data, self.mesh, "data")
        if self.data == self.axis:
            raise ValueError(
                f"data: got {self.data!r}, which is the axis of the stages; another one, or None, "
                "is wanted"
            )

    def run(self, job: Job) -> Trained:
        compiled, table = self.compiled(job), job.table
        *stacked, ticks = compiled.run(*compiled.arguments)
        rows = np.argsort(_in_stages(range(table.blocks), self._stages))
        params, states = ([row(tree, at) for at in rows] for tree in stacked[:2])
        own = [row(stacked[2], 0), *[()] * (table.blocks - 1)]
        if not table.together:
            own = United(job.optimisers).own([row(stacked[2], at) for at in rows])
        return Trained(params, states, own, _losses(table, ticks[-1]))

    @property
    def _stages(self) -> int:
        return self.mesh.shape[self.axis]

    def compiled(self, job: Job) -> SpmdProgram:
        """The program of a run, to look at; with the errors of `run`."""
        table, params, states = job.table, job.params, job.states
        block = self._block(job)
        for k, each in enumerate(params):
            check_trained(k, each)
        check_alike("params", params)
        check_alike("states", states)
        united = United(job.optimisers)
        plan, rooms = instructions(table, self._stages, united.optimiser.read)
        pieces = 1 if self.data is None else self.mesh.shape[self.data]
        weight, loss = weighed(job.loss, job.weight, table.parts * pieces)
        xs, labels = _rows(table, job.batches, pieces, weight)
        pairs = _pieces(xs, labels, pieces)
        check_one_shape(job.network, pairs[0][0])
        check_fit(job.network, loss, pairs)
        optimisers = [own.own for own in job.optimisers]
        begun = start_states(optimisers, params, job.optimiser_states, table.together)
        # Every stage does the step of all, if there is one.
        begun = (
            [begun[0]] * self._stages
            if table.together
            else _in_stages(united.states(begun, params), self._stages)
        )
        stacked = map(
            _stack, (_in_stages(params, self._stages), _in_stages(states, self._stages), begun)
        )
        # Results are divided up outside of the program, where explicit axes would have to be
        # resolved.
        mesh = Mesh(self.mesh.devices, self.mesh.axis_names)
        arguments = tuple(
            jax.device_put(each, NamedSharding(mesh, spec))
            for each, spec in zip(
                (plan, *stacked, xs, labels, job.key), _specs(self.axis, self.data), strict=True
            )
        )
        stage = StageProgram(
            block, united.optimiser, loss, table, rooms, self._stages, self.axis, self.data
        )
        return SpmdProgram(_compiled(stage, mesh), arguments)

    def _block(self, job: Job) -> Block:
        """That which all blocks are."""
        if len(job.blocks) % self._stages:
            raise ValueError(
                f"blocks: got {len(job.blocks)} for {self._stages} devices along the axis "
                f"{self.axis!r}; one for each, or as many on each, are wanted"
            )
        for k, each in enumerate(job.blocks):
            if each != job.blocks[0]:
                raise ValueError(
                    f"blocks[{k}]: got another block than blocks[0]; one program for all stages "
                    "takes [block] * K, which differ in their params alone. executor=Threads() "
                    "runs any"
                )
        return job.blocks[0]


# A table of many ticks is kept as long as its program.
@functools.lru_cache(maxsize=16)
def _compiled(stage: StageProgram, mesh: Mesh) -> Callable[..., Any]:
    stages = PartitionSpec(stage.axis)
    # Blocks are any functions: scans and custom rules in them need not say which axes they vary on.
    return jax.jit(
        jax.shard_map(
            stage,
            mesh=mesh,
            in_specs=_specs(stage.axis, stage.data),
            out_specs=(stages, stages, stages, stages),
            check_vma=False,
        )
    )


def _specs(axis: str, data: str | None) -> tuple[PartitionSpec, ...]:
    stages, rows = PartitionSpec(axis), PartitionSpec(None, None, data)
    return PartitionSpec(None, axis), stages, stages, stages, rows, rows, PartitionSpec()


def _in_stages(of_blocks: Sequence[Any], stages: int) -> list[Any]:
    """Those of stage 0 first, block 0, D, 2 D, ..., then those of the next one."""
    return [each for first in range(stages) for each in of_blocks[first::stages]]


def _stack(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _rows(
    table: Table,
    batches: Sequence[tuple[PyTree, PyTree]],
    devices: int,
    weight: Weight | None,
) -> tuple[PyTree, PyTree]:
    """All data and labels, (batches, parts, rows, ...); with a weight what `Weighed` takes, a share
    for each device."""
    parts = [check_batch(n, batch, table.parts, table.name) for n, batch in enumerate(batches)]
    check_alike("batches", [own[0] for own in parts])
    xs, labels = jax.tree.map(
        lambda *leaves: np.stack(leaves).reshape(len(parts), table.parts, *np.shape(leaves[0])),
        *[pair for own in parts for pair in own],
    )
    rows = {leaf.shape[2] if leaf.ndim > 2 else 0 for leaf in jax.tree.leaves((xs, labels))}
    if devices > 1 and any(not count or count % devices for count in rows):
        raise ValueError(
            f"batches: got {sorted(rows)} rows in a part; a multiple of the {devices} devices that "
            "divide them is wanted"
        )
    if weight is None:
        return xs, labels
    made = []
    for n in range(len(parts)):
        own_xs, own_labels = jax.tree.map(lambda a, n=n: a[n:], (xs, labels))
        pieces = _pieces(own_xs, own_labels, devices)
        made.append(shares(weight, [own for _, own in pieces]))
    return xs, (labels, np.stack(made).reshape(len(parts), table.parts, devices))


def _pieces(xs: PyTree, labels: PyTree, devices: int) -> list[tuple[PyTree, PyTree]]:
    """What devices have of the first batch: its parts, each divided among them."""

    def piece(leaf: Any, part: int, device: int) -> Any:
        own = leaf[0, part]
        return own if devices == 1 else np.split(own, devices)[device]

    return [
        jax.tree.map(lambda leaf, i=i, d=d: piece(leaf, i, d), (xs, labels))
        for i in range(len(jax.tree.leaves(xs)[0][0]))
        for d in range(devices)
    ]


def _losses(table: Table, ticks: Array) -> Array:
    """Of each batch, the mean over its parts."""
    of: dict[int, list[int]] = {}
    for task in table.tasks:
        if task.kind == "forward" and task.block == table.blocks - 1:
            of.setdefault(task.batch, []).append(task.tick)
    return jnp.stack([jnp.mean(jnp.stack([ticks[t] for t in of[n]])) for n in sorted(of)])
