"""What a remedy may do about a gradient that comes late."""

from __future__ import annotations

import dataclasses

from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What is done to a stage whose gradients are d >= 1 steps late; a frozen configuration.

    `stale` and `run` take them. This one does nothing. A new remedy is a file with a subclass, and
    overrides what it needs; a state of its own has to keep its shapes and dtypes.

    Example:
      >>> import dataclasses, jax, jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> @dataclasses.dataclass(frozen=True)
      ... class Halved(pb.pipeline.Remedy):
      ...     def adjust(self, updates, state, delay):
      ...         return jax.tree.map(lambda u: u / 2, updates), state
      >>> optimiser = pb.pipeline.stale(optax.sgd(1.0), 1, remedies=[Halved()])
      >>> w = jnp.ones(())
      >>> _, state = optimiser.update(w, optimiser.init(w), w)
      >>> float(optimiser.update(w, state, w)[0])
      -0.5
    """

    def init(self, delay: int, params: PyTree) -> PyTree:
        """Its state of a stage."""
        del delay, params
        return ()

    def stored(self, params: PyTree) -> PyTree:
        """What is known, once a gradient is used, of the ``params`` at which it was taken."""
        del params
        return ()

    def correct(
        self, gradient: PyTree, stored: PyTree, params: PyTree, state: PyTree
    ) -> tuple[PyTree, PyTree]:
        """The gradient that the optimiser is given, and the new state.

        Args:
          gradient: what comes out of the queue.
          stored: what was stored with it.
          params: of the stage, now.
          state: its own.
        """
        del stored, params
        return gradient, state

    def adjust(self, updates: PyTree, state: PyTree, delay: int) -> tuple[PyTree, PyTree]:
        """The updates that are made of the optimiser's, and the new state."""
        del delay
        return updates, state

    def predicted(self, params: PyTree, state: PyTree, delay: int) -> PyTree:
        """Where the next gradient is taken instead of at ``params``, those of the stage now."""
        del state, delay
        return params
