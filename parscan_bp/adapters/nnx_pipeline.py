"""Modules of `flax.nnx` trained by a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import jax

from parscan_bp.adapters.nnx_block import as_block
from parscan_bp.arguments import described
from parscan_bp.pipeline import Block, Remedy, Schedule
from parscan_bp.pipeline.trainer import BasePipeline
from parscan_bp.types import Array, PyTree

try:
    from flax import nnx
except ImportError as error:
    raise ImportError(
        "parscan_bp.nnx needs Flax, which is not installed: pip install 'parscan_bp[flax]'"
    ) from error


@final
class Pipeline(BasePipeline):
    """A model of `flax.nnx` trained by the schedule of a pipeline, fed batch by batch.

    Every block of layers is on a device of its own, with a thread and an optimiser state of its
    own; see `parscan_bp.pipeline.Pipeline` for what it can do, and
    `parscan_bp.pipeline.Threads` for how it runs.

    Args:
      model: a `flax.nnx.Sequential`, or a sequence of modules and functions of one argument. It is
        left as it is; `model` makes the trained one.
      split: how many layers each block gets; or how many blocks there are to be, balanced by the
        times that layers take, which are measured when the first batch comes. ``None`` is as many
        blocks as the schedule is for, or else as there are devices.
      schedule, optimiser, loss, devices, key, weight, remedies: as in
        `parscan_bp.pipeline.Pipeline`. Modules have random streams of their own.

    Raises:
      TypeError: if ``model`` is no such model.
      ValueError: if layers share a parameter, which blocks on different devices cannot: those from
        the first to the last of them have to be one module; as `parscan_bp.pipeline.Pipeline`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from flax import nnx
      >>> import parscan_bp as pb, parscan_bp.nnx
      >>> rngs = nnx.Rngs(0)
      >>> model = nnx.Sequential(nnx.Linear(3, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 1, rngs=rngs))
      >>> pipeline = parscan_bp.nnx.Pipeline(
      ...     model, schedule=pb.pipeline.DSP((1, 0), (2, 0)), optimiser=optax.sgd(0.05),
      ...     loss=lambda y, labels: jnp.mean((y - labels) ** 2))
      >>> losses = pipeline.fit([(jnp.ones((4, 3)), jnp.ones((4, 1)))] * 40)
      >>> bool(losses[-1] < 0.1 * losses[0])
      True
      >>> pipeline.model()(jnp.ones((1, 3))).shape
      (1, 1)
    """

    def __init__(
        self,
        model: Any,
        *,
        split: int | Sequence[int] | None = None,
        schedule: Schedule,
        optimiser: Any,
        loss: Callable[[PyTree, PyTree], Array],
        devices: Sequence[Any] | None = None,
        key: Array | None = None,
        weight: Callable[[PyTree], Any] | None = None,
        remedies: Sequence[Remedy] = (),
    ):
        modules = model.layers if isinstance(model, nnx.Sequential) else model
        if isinstance(modules, str) or not isinstance(modules, Sequence):
            raise TypeError(
                f"model: got {described(model)}; a flax.nnx.Sequential, or a sequence of modules "
                "and functions, is wanted: other models do not say where they can be divided"
            )
        _check_apart(modules)
        self._modules = list(modules)
        parts = [_piece(k, module) for k, module in enumerate(modules)]
        super().__init__(
            [block for block, _, _ in parts],
            [params for _, params, _ in parts],
            [state for _, _, state in parts],
            split=split,
            schedule=schedule,
            optimiser=optimiser,
            loss=loss,
            devices=devices,
            key=key,
            weight=weight,
            remedies=remedies,
        )

    def model(self) -> nnx.Sequential:
        """A new model with the newest parameters and states, all on the first block's device.

        Waits until what has begun is done.
        """
        made = []
        own = jax.device_put((self.params, self.states), self._devices[0])
        for module, params, state in zip(self._modules, *own, strict=True):
            if isinstance(module, nnx.Module):
                module = nnx.clone(module)
                nnx.update(module, params, state)
            made.append(module)
        return nnx.Sequential(*made)


def _piece(k: int, module: Any) -> tuple[Block, PyTree, PyTree]:
    if isinstance(module, nnx.Module):
        return as_block(module)
    if not callable(module):
        raise TypeError(f"model: got {described(module)} as layer {k}; a module is wanted")
    return Block(lambda params, state, x, key: (module(x), state)), (), ()


def _check_apart(modules: Sequence[Any]) -> None:
    owner: dict[int, int] = {}
    for k, module in enumerate(modules):
        if not isinstance(module, nnx.Module):
            continue
        for path, node in nnx.iter_graph(module):
            if not isinstance(node, nnx.Param):
                continue
            other = owner.setdefault(id(node), k)
            if other != k:
                name = ".".join(map(str, path))
                raise ValueError(
                    f"model: layers {other} and {k} share the parameter {name}, and may come onto "
                    f"two devices; one module of the layers {other} to {k}, as "
                    f"nnx.Sequential(*layers[{other}:{k + 1}]), is wanted, which stays on one"
                )
