"""A tick table as one program for all stages: `jax.shard_map` over a mesh axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parscan_bp.arguments import described
from parscan_bp.devices import check_axis
from parscan_bp.pipeline.blocks import as_block
from parscan_bp.pipeline.executors.instructions import instructions
from parscan_bp.pipeline.executors.stage_program import StageProgram
from parscan_bp.pipeline.fitting import (
    check_alike,
    check_batch,
    check_fit,
    check_one_shape,
    one_each,
)
from parscan_bp.pipeline.optimiser_state import start_states
from parscan_bp.pipeline.parts import Weight, check_parts, shares
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.run_arguments import as_key, check_batches, check_run, weighed
from parscan_bp.pipeline.schedules import Schedule, Table
from parscan_bp.pipeline.simulate import Trained
from parscan_bp.pipeline.updating import schedule_for
from parscan_bp.types import Array, PyTree


class SpmdProgram(NamedTuple):
    """A compiled run and what it is called with.

    Attributes:
      run: jitted; ``run.lower(*arguments).compile()`` is what `collective_stats` reads.
      arguments: of it, on the devices.
      table: whose ticks it does.
    """

    run: Callable[..., Any]
    arguments: tuple[PyTree, ...]
    table: Table


def run_spmd(
    block: Any,
    schedule: Schedule,
    optimiser: Optimiser,
    loss: Loss,
    params: Sequence[PyTree],
    batches: Sequence[tuple[PyTree, PyTree]],
    *,
    mesh: Mesh,
    axis: str = "stage",
    data: str | None = None,
    states: Sequence[PyTree] | None = None,
    optimiser_states: Sequence[PyTree] | None = None,
    key: Array | None = None,
    weight: Weight | None = None,
) -> Trained:
    """Trains K blocks of one shape with the schedule of a pipeline, each on its own devices.

    One program for all stages of a mesh axis, one `jax.lax.scan` over the ticks of the schedule's
    `Table`. A stage does what the table says in branches; at the end of a tick one permutation
    sends outputs up, another one error gradients down, and nothing else is sent; but for an
    optimiser that wants all gradients at once, for which every stage gathers them, and all weights,
    at the end of a batch, and holds the optimiser's state of all. What `simulate`
    computes, to the last bit; with ``data`` up to rounding, as means are taken in another order.

    Args:
      block: what `as_block` takes, of which y has the shape and dtype of x; all blocks are it.
      schedule, optimiser, loss: as in `simulate`.
      params: of each block, of the same shapes.
      batches: N pairs (x, labels) of the same shapes. All of them lie on every stage.
      mesh: of devices, with the axis of the stages.
      axis: its name; the mesh has K devices along it.
      data: the axis over which the rows of every part of a batch are divided, if any: gradients
        are averaged over it before an update, the floats of states at the end.
      states, optimiser_states, key, weight: as in `simulate`. With ``data`` each device's rows have
        a random key of their own, and are a part of the batch.

    Returns:
      As `simulate`.

    Raises:
      TypeError: if an argument is of another kind.
      ValueError: as `simulate`; if the mesh has another number of devices along ``axis`` than there
        are blocks, blocks, parameters or batches differ in shape, or rows cannot be divided.
      NotImplementedError: if the schedule needs several hops, or several passes of one kind at a
        block, in one tick: `FeaturesReplay`, `DelayedGradients`, `DSP` with a p or q of 0.

    Source: DSP (Xu, Huo, Huang), section 3, for the queues.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np, optax
      >>> import parscan_bp as pb
      >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("stage",))
      >>> error = lambda y, labels: jnp.mean((y - labels) ** 2)
      >>> run = pb.pipeline.run_spmd(
      ...     lambda w, x: w * x, pb.pipeline.GPipe(2), optax.sgd(0.1), error, [jnp.ones(())],
      ...     [(jnp.ones(4), jnp.full(4, 2.0))] * 30, mesh=mesh)
      >>> round(float(run.params[0]), 2)
      2.0
    """
    made = spmd_program(
        block,
        schedule,
        optimiser,
        loss,
        params,
        batches,
        mesh=mesh,
        axis=axis,
        data=data,
        states=states,
        optimiser_states=optimiser_states,
        key=key,
        weight=weight,
    )
    *stacked, ticks = made.run(*made.arguments)
    blocks = range(made.table.blocks)
    own = [[jax.tree.map(lambda a, k=k: a[k], tree) for k in blocks] for tree in stacked]
    if made.table.together:
        own[2] = [own[2][0], *[()] * (made.table.blocks - 1)]
    return Trained(own[0], own[1], own[2], _losses(made.table, ticks[-1]))


def spmd_program(
    block: Any,
    schedule: Schedule,
    optimiser: Optimiser,
    loss: Loss,
    params: Sequence[PyTree],
    batches: Sequence[tuple[PyTree, PyTree]],
    *,
    mesh: Mesh,
    axis: str = "stage",
    data: str | None = None,
    states: Sequence[PyTree] | None = None,
    optimiser_states: Sequence[PyTree] | None = None,
    key: Array | None = None,
    weight: Weight | None = None,
) -> SpmdProgram:
    """The program of `run_spmd`, with the same arguments and errors, to look at.

    It returns weights, states and optimiser states with a leading axis of stages, and losses
    (stages, ticks), of which those of the last stage count.
    """
    block = as_block(block)
    check_run(schedule, optimiser, loss, weight)
    check_batches(batches)
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: got {described(mesh)}; a jax.sharding.Mesh is wanted")
    check_axis(axis, mesh)
    if data is not None:
        check_axis(data, mesh, "data")
    if data == axis:
        raise ValueError(
            f"data: got {data!r}, which is the axis of the stages; another one, or None, is wanted"
        )
    # Results are divided up outside of the program, where explicit axes would have to be resolved.
    mesh = Mesh(mesh.devices, mesh.axis_names)
    blocks = len(params) if isinstance(params, Sequence) else 0
    params = one_each("params", params, mesh.shape[axis])
    states = [()] * blocks if states is None else one_each("states", states, blocks)
    check_alike("params", params)
    check_alike("states", states)
    key = as_key(key)
    table = schedule_for(schedule, optimiser, params).table(blocks, len(batches))
    plan, rooms = instructions(table)
    pieces = 1 if data is None else mesh.shape[data]
    weight, loss = weighed(loss, weight, table.parts * pieces)
    xs, labels = _rows(table, batches, pieces, weight)
    pairs = _pieces(xs, labels, pieces)
    check_one_shape(block, pairs[0][0], params[0], states[0], key)
    check_fit([block] * blocks, loss, pairs[0], params, states, key)
    check_parts([block] * blocks, loss, pairs, params, states, key)
    if optimiser_states is not None:
        optimiser_states = one_each("optimiser_states", optimiser_states, blocks)
    begun = start_states(optimiser, params, optimiser_states, table.together)
    if table.together:
        # Every stage does the step of all.
        begun = [begun[0]] * blocks
    stacked = map(_stack, (params, states, begun))
    arguments = (plan, *stacked, xs, labels, key)
    specs = _specs(axis, data)
    arguments = tuple(
        jax.device_put(each, NamedSharding(mesh, spec))
        for each, spec in zip(arguments, specs, strict=True)
    )
    stage = StageProgram(block, optimiser, loss, table, rooms, axis, data)
    return SpmdProgram(_compiled(stage, mesh), arguments, table)


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
