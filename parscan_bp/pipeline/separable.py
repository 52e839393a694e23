"""Whether an optimiser can be run by each block for itself."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.pipeline.programs import Optimiser
from parscan_bp.types import PyTree


def check_separable(optimiser: Optimiser, stages: Sequence[PyTree]) -> None:
    """Raises unless the update of each stage is made of that stage's own gradient.

    Stages are updated at different times, each with an optimiser state of its own. One update of
    all of them is traced, and what its results depend on is read from the jaxpr.

    Args:
      optimiser: a pair (init, update).
      stages: the parameters of each stage; arrays, or their shapes and dtypes.

    Raises:
      NotImplementedError: if one depends on the gradient of another one.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from parscan_bp.pipeline.separable import check_separable
      >>> stages = [jnp.ones(2), jnp.ones(3)]
      >>> check_separable(optax.adam(0.1), stages)
      >>> try:
      ...     check_separable(optax.clip_by_global_norm(1.0), stages)
      ... except NotImplementedError as error:
      ...     print(str(error).partition(",")[0])
      optimiser: the update of stage 0 depends on the gradient of stage 1
    """
    if len(stages) < 2:
        return
    owners = [k for k, stage in enumerate(stages) for _ in jax.tree.leaves(stage)]

    def update(gradients, params):
        return optimiser.update(gradients, optimiser.init(params), params)[0]

    shapes = jax.eval_shape(lambda *trees: list(trees), *stages)
    try:
        jaxpr = jax.make_jaxpr(update)(shapes, shapes)
    except (TypeError, ValueError):
        # It is for the tree of one stage, as with labels or a mask, and never sees another's.
        return
    depends = dependencies(jaxpr)[:, : len(owners)]
    for out, own in enumerate(owners):
        others = [owners[i] for i in np.flatnonzero(depends[out]) if owners[i] != own]
        if others:
            raise NotImplementedError(
                f"optimiser: the update of stage {own} depends on the gradient of stage "
                f"{others[0]}, as with clipping by the global norm; stages are updated at "
                "different times and know their own gradient only. Clip each by its own norm "
                "(optax.clip_by_block_rms, optax.adaptive_grad_clip), or by value (optax.clip)"
            )
