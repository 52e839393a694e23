"""A pipeline that is fed batch by batch, stopped in mid-flight, and asked how it does."""

from __future__ import annotations

import abc
import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.pipeline import checkpoint
from parscan_bp.pipeline.block_optimiser import block_optimisers
from parscan_bp.pipeline.block_run import block_runs
from parscan_bp.pipeline.blocks import Block, Network
from parscan_bp.pipeline.executors.stream import Stream
from parscan_bp.pipeline.executors.threads import devices_of
from parscan_bp.pipeline.executors.workers import Workers
from parscan_bp.pipeline.fitting import as_blocks, check_batch, check_fit, check_like, one_each
from parscan_bp.pipeline.in_flight import Structures, entries_of, put_back
from parscan_bp.pipeline.job import as_key, check_run, weighed
from parscan_bp.pipeline.layers import joined_block, layer_seconds, split_of
from parscan_bp.pipeline.pipeline_report import (
    BlockReport,
    PipelineReport,
    busy_seconds,
    modelled_bubble,
)
from parscan_bp.pipeline.programs import Loss, Optimiser
from parscan_bp.pipeline.remedies import Remedy
from parscan_bp.pipeline.remedies.apply import as_remedies
from parscan_bp.pipeline.schedules import Schedule
from parscan_bp.pipeline.updating import schedule_for
from parscan_bp.planner.balanced import balanced
from parscan_bp.types import Array, PyTree

REMEMBERED = 32
"""Steps over which a report takes its means."""


class BasePipeline(abc.ABC):
    """What all pipelines can do, whatever their layers are made of. See `Pipeline`."""

    def __init__(
        self,
        layers: Sequence[Block],
        params: Sequence[PyTree],
        states: Sequence[PyTree],
        *,
        split: int | Sequence[int] | None,
        schedule: Schedule,
        optimiser: Optimiser,
        loss: Loss,
        devices: Sequence[Any] | None,
        key: Array | None,
        weight: Callable[[PyTree], Any] | None,
        remedies: Sequence[Remedy],
    ):
        check_run(schedule, optimiser, loss, weight)
        self._layers, self._schedule = list(layers), schedule
        self._weight, self._loss = weighed(loss, weight, schedule.parts)
        self._optimiser, self._remedies = optimiser, as_remedies(remedies)
        self._key = as_key(key)
        self._start_params, self._start_states = list(params), list(states)
        devices = jax.devices() if devices is None else devices
        devices_of(devices, 1)
        self._split, self._blocks = split_of(split, schedule, len(self._layers), len(devices))
        self._devices = devices_of(devices, self._blocks)
        self._stream = Stream(schedule, self._blocks)
        self._entered = self._before = 0
        self._seconds: list[float] | None = None
        self._workers: Workers | None = None
        self._example: Any = None

    @property
    def batches(self) -> int:
        """That have entered, those before a restored checkpoint among them."""
        return self._before + self._entered

    @property
    def split(self) -> tuple[int, ...] | None:
        """How many layers each block has; ``None`` before the first batch if it is measured."""
        return self._split

    @abc.abstractmethod
    def model(self) -> Any:
        """What was given, with the newest parameters and states."""

    @property
    def params(self) -> list[PyTree]:
        """Of each layer, the newest. Waits until what has begun is done."""
        return self._of_layers("newest", self._start_params)

    @property
    def states(self) -> list[PyTree]:
        """Of each layer."""
        return self._of_layers("state", self._start_states)

    def step(self, batch: tuple[PyTree, PyTree]) -> Array | None:
        """Lets a batch enter.

        Blocks work on while the next batch is made: this waits only for the batch whose gradient
        comes to block 0 now, so many steps ago as the schedule has batches on the way.

        Args:
          batch: (x, labels), as in `run`. All are of the structure, shapes and dtypes of the
            first one: leave out a last batch that is smaller, or fill it up.

        Returns:
          The loss of that batch, a scalar; ``None`` while the pipeline fills.

        Raises:
          TypeError, ValueError: if it is no such pair, or does not fit; as `run`. It has not
            entered then, and another one may.
          Exception: what a block raised in its thread.
        """
        parts = self._schedule.parts
        pairs = check_batch(self.batches, batch, parts, str(self._schedule), self._weight)
        if self._workers is None:
            self._start(pairs, self._split)
        part = "a part of " if parts > 1 else ""
        check_like(f"batch: {part}(x, labels)", pairs[0], self._example)
        workers = self._workers
        assert workers is not None
        workers.enter(self._entered, pairs)
        workers.give(self._stream.step(self._entered))
        self._entered += 1
        late = self._entered - 1 - self._stream.ahead
        return workers.loss(late) if late >= 0 else None

    def finish(self) -> Array:
        """Empties the pipeline: all blocks are updated by all batches that have entered.

        Returns:
          The losses that `step` has not returned, in their order. Further batches may enter then,
          as into a new pipeline, with other random keys.
        """
        if self._workers is None or not self._entered:
            return jnp.zeros(0)
        workers = self._workers
        workers.give(self._stream.rest(self._entered))
        late = range(max(0, self._entered - self._stream.ahead), self._entered)
        losses = [workers.loss(n) for n in late]
        workers.idle()
        self._before += self._entered
        self._entered = 0
        for own in workers.runs:
            own.restart(self._before)
        return jnp.stack(losses) if losses else jnp.zeros(0)

    def fit(self, batches: Iterable[tuple[PyTree, PyTree]]) -> Array:
        """All batches, one after the other, then `finish`.

        Args:
          batches: pairs (x, labels); ``tqdm(batches)`` shows how far it is.

        Returns:
          (batches,), their losses.
        """
        is_iterated = hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
        if isinstance(batches, str | Mapping) or not is_iterated:
            raise TypeError(
                f"batches: got {described(batches)}; what can be iterated over, to pairs (x, "
                "labels), is wanted"
            )
        losses = [loss for loss in map(self.step, batches) if loss is not None]
        return jnp.concatenate([*(jnp.reshape(loss, 1) for loss in losses), self.finish()])

    def save(self, path: str | os.PathLike) -> None:
        """Writes all that the pipeline holds to a file, what is on the way included.

        Whoever goes on from it computes what would have been computed without, to the last bit on
        a machine alike. The file is there whole or not at all.

        Raises:
          ValueError: before the first batch, when there is nothing to save.
          TypeError: if batches are made of other containers than dicts, lists and tuples.
        """
        if self._workers is None:
            raise ValueError("save: no batch has entered; there is nothing to save yet")
        self._workers.idle()
        about = {
            "schedule": str(self._schedule),
            "remedies": list(map(str, self._remedies)),
            "split": self._split,
            "seconds": self._seconds,
            "entered": self._entered,
            "before": self._before,
            "batch": checkpoint.skeleton("batch", self._example),
        }
        checkpoint.write(path, about, entries_of(self._workers.runs, self._workers.mail.box))

    def restore(self, path: str | os.PathLike) -> None:
        """Goes on from a file of `save`; the next batch is the one with the number `batches`.

        Raises:
          ValueError: if batches have entered already, or the file is of another pipeline.
        """
        if self._workers is not None:
            raise ValueError("restore: batches have entered; a new Pipeline is wanted")
        about, entries = checkpoint.read(path)
        split = tuple(about["split"])
        if about["schedule"] != str(self._schedule) or sum(split) != len(self._layers):
            raise ValueError(
                f"path: {path} is of {about['schedule']} with {sum(split)} layers; this pipeline "
                f"is {self._schedule} with {len(self._layers)}"
            )
        wanted, found = list(map(str, self._remedies)), about.get("remedies", [])
        if found != wanted:
            raise ValueError(
                f"path: {path} is of a run with the remedies {found}; this pipeline has {wanted}"
            )
        if len(split) != self._blocks or self._split not in (None, split):
            raise ValueError(
                f"path: {path} is split into {split}, this pipeline into {self._split}"
            )
        self._start([checkpoint.from_skeleton(about["batch"])], split, entries)
        self._seconds = about["seconds"]
        self._entered, self._before = about["entered"], about["before"]

    def report(self) -> PipelineReport:
        """Bubble, memory, staleness, block by block. Waits until what has begun is done.

        Times are those of the last steps; of a run that has just begun they contain compiling.

        Raises:
          ValueError: before a batch has left the pipeline since it was made or restored.
        """
        if self._workers is not None:
            self._workers.idle()
        spans = [] if self._workers is None else list(self._workers.spans)
        left = any(span.task.kind == "update" and span.task.block == 0 for span in spans)
        if self._workers is None or not left:
            raise ValueError(
                "report: no batch has left the pipeline since it was made or restored; there is "
                f"nothing to report yet: {self._stream.ahead + 1} steps, or finish(), are wanted"
            )
        runs, blocks = self._workers.runs, self._blocks
        busy, total = busy_seconds(spans, blocks)
        begun = [s for s in spans if s.task.kind == "forward" and s.task.block == 0]
        staleness, held = self._schedule.staleness(blocks), self._schedule.held(blocks)
        assert self._split is not None
        ends = [sum(self._split[:k]) for k in range(blocks + 1)]
        seconds = self._seconds
        own = tuple(
            BlockReport(
                layers=self._split[k],
                device=str(self._devices[k]),
                seconds=None if seconds is None else sum(seconds[ends[k] : ends[k + 1]]),
                busy=busy[k] / total,
                staleness=staleness[k],
                held=held[k],
                bytes=runs[k].bytes_held,
            )
            for k in range(blocks)
        )
        return PipelineReport(
            schedule=str(self._schedule),
            batches=self.batches,
            seconds=total * self._schedule.parts / max(1, len(begun)),
            bubble=1 - sum(busy) / (blocks * total),
            modelled=modelled_bubble(self._schedule, blocks, spans),
            blocks=own,
        )

    def close(self) -> None:
        """Ends the threads. What is on the way is lost."""
        if self._workers is not None:
            self._workers.close()

    def _of_layers(self, name: str, start: list[PyTree]) -> list[PyTree]:
        if self._workers is None:
            return list(start)
        self._workers.idle()
        return [each for own in self._workers.runs for each in getattr(own, name)]

    def _start(
        self,
        pairs: Sequence[tuple[PyTree, PyTree]],
        split: tuple[int, ...] | None,
        entries: Any = None,
    ) -> None:
        """Splits the layers and starts the threads, with what was saved if there is something."""
        x, labels = pair = pairs[0]
        params, states, key = self._start_params, self._start_states, self._key
        seconds = None
        if split is None:
            seconds = layer_seconds(self._layers, params, states, x, key)
            cuts = balanced(seconds, self._blocks)
            split = tuple(b - a for a, b in itertools.pairwise(cuts))
        ends = list(itertools.accumulate(split, initial=0))
        cut = lambda values: [values[a:b] for a, b in itertools.pairwise(ends)]  # noqa: E731
        blocks = [joined_block(tuple(own)) for own in cut(self._layers)]
        network = Network(blocks, cut(params), cut(states), key)
        schedule = schedule_for(self._schedule, self._optimiser, network.params)
        check_fit(network, self._loss, pairs)
        stream = Stream(schedule, self._blocks)
        table = schedule.table(self._blocks, stream.ahead + 1)
        optimisers = block_optimisers(self._optimiser, self._remedies, schedule, self._blocks)
        runs = block_runs(network, table, optimisers, self._loss)
        box: Any = {}
        if entries is not None:
            put_back(runs, box, Structures(network, runs, x, labels), entries)
        # Nothing has changed before: who gave a batch that does not fit may give another one.
        self._example = jax.eval_shape(lambda: pair) if entries is None else pair
        self._split, self._seconds = split, seconds
        self._schedule, self._stream = schedule, stream
        steady = len(self._stream.step(self._stream.ahead)) + 1
        self._workers = Workers(
            runs,
            self._devices,
            table.parts,
            lockstep=table.lockstep,
            lasts=lambda task, took: took,
            remember=REMEMBERED * steady,
        )
        self._workers.mail.box.update(box)
        # The threads know the mail and their blocks, not the pipeline: it ends them when it goes.
        weakref.finalize(self, self._workers.mail.close)


@final
class Pipeline(BasePipeline):
    """Layers trained by the schedule of a pipeline, fed batch by batch; `Threads`, step by step.

    Args:
      layers: what `as_block` takes, each. Of modules of Flax see `parscan_bp.nnx.Pipeline`.
      params: of each layer.
      states: of each layer; ``None`` if there are none.
      split: how many layers each block gets; or how many blocks there are to be, balanced by the
        times that layers take, which are measured when the first batch comes. ``None`` is as many
        blocks as the schedule is for, or else as there are devices.
      schedule: the schedule.
      optimiser, loss: as in `run`.
      devices: as in `Threads`.
      key: random key. A block has that of `run`; one of several layers splits it, a key for
        each.
      weight, remedies: as in `run`.

    Raises:
      TypeError, ValueError: if an argument is none such, or there are fewer layers than blocks.
      NotImplementedError: with the first batch, as `run` of the optimiser.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> pipeline = pb.pipeline.Pipeline(
      ...     [lambda w, x: w * x] * 4, [jnp.ones(())] * 4, split=(1, 1, 2),
      ...     schedule=pb.pipeline.DSP((1, 1, 0), (4, 2, 0)), optimiser=optax.sgd(0.05),
      ...     loss=lambda y, labels: jnp.mean((y - labels) ** 2))
      >>> losses = pipeline.fit([(jnp.ones(4), jnp.full(4, 2.0))] * 30)
      >>> losses.shape, bool(losses[-1] < 0.1 * losses[0])
      ((30,), True)
      >>> pipeline.report().blocks[0].staleness
      Staleness(forward=4, backward=0)
    """

    def __init__(
        self,
        layers: Sequence[Any],
        params: Sequence[PyTree],
        states: Sequence[PyTree] | None = None,
        *,
        split: int | Sequence[int] | None = None,
        schedule: Schedule,
        optimiser: Optimiser,
        loss: Loss,
        devices: Sequence[Any] | None = None,
        key: Array | None = None,
        weight: Callable[[PyTree], Any] | None = None,
        remedies: Sequence[Remedy] = (),
    ):
        blocks = as_blocks("layers", layers)
        super().__init__(
            blocks,
            one_each("params", params, len(blocks)),
            [()] * len(blocks) if states is None else one_each("states", states, len(blocks)),
            split=split,
            schedule=schedule,
            optimiser=optimiser,
            loss=loss,
            devices=devices,
            key=key,
            weight=weight,
            remedies=remedies,
        )

    def model(self) -> tuple[list[PyTree], list[PyTree]]:
        """The newest params and states of all layers. Waits until what has begun is done."""
        return self.params, self.states
