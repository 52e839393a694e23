"""Whether an optimiser can be run by each block for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.pipeline.fitting import same_types
from parscan_bp.pipeline.optimiser_state import missing_arguments
from parscan_bp.pipeline.programs import Optimiser
from parscan_bp.types import PyTree


class Crossing(NamedTuple):
    """The update of `owner` depends on `what`, the gradient or the params, of `other`."""

    owner: int
    other: int
    what: str


def why_not_separable(optimiser: Optimiser, stages: Sequence[PyTree]) -> str | None:
    """A sentence that says why the stages cannot be updated one by one; ``None`` if they can.

    What updates depend on, in any step, is read from the jaxprs of ``init`` and ``update``, in two
    ways, as there are optimisers that take one only, such as those with labels or a mask: with the
    parameters of all stages, and for each stage with every leaf twice, once its own and once that
    of a stage alike. What is refused in both ways is not known, and not taken to be separable.

    Args:
      optimiser: a pair (init, update).
      stages: the parameters of each stage; arrays, or their shapes and dtypes.

    Raises:
      TypeError: of ``update``, if it wants more than gradients, state and parameters.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from parscan_bp.pipeline.separable import why_not_separable
      >>> stages = [jnp.ones(2), jnp.ones(3)]
      >>> why_not_separable(optax.adam(0.1), stages)
      >>> why_not_separable(optax.clip_by_global_norm(1.0), stages)
      'the update of stage 0 depends on the gradient of stage 1'
    """
    if len(stages) < 2:
        return None
    told: list[Exception] = []
    owners = [k for k, stage in enumerate(stages) for _ in jax.tree.leaves(stage)]
    try:
        if found := _crossing(optimiser, list(stages), owners):
            owner, other, what = found
            return f"the update of stage {owner} depends on the {what} of stage {other}"
    # Whatever an optimiser or a mask of the caller's raises of a tree that it is not for.
    except Exception as error:
        if missing_arguments(error):
            raise
        told.append(error)
    for k, stage in enumerate(stages):
        if any(same_types(stage, before) for before in stages[:k]):
            continue
        twins = jax.tree.map(lambda leaf: (leaf, leaf), stage)
        try:
            found = _crossing(optimiser, twins, [0, 1] * len(jax.tree.leaves(stage)))
        except Exception as error:
            if not told:
                return None
            return (
                "whether the update of a stage depends on the gradients of others cannot be "
                f"told: of the params of all stages it says: {told[0]}; of those of stage {k}, "
                f"each leaf a pair: {error}"
            )
        if found:
            return f"the update of stage {k} depends on the {found.what} of other stages"
    return None


def _crossing(optimiser: Optimiser, params: PyTree, owners: Sequence[int]) -> Crossing | None:
    """An owner of leaves whose update depends, in some step, on the leaves of another one."""
    params = jax.eval_shape(lambda: params)
    init, state = jax.make_jaxpr(optimiser.init, return_shape=True)(params)
    update, made = jax.make_jaxpr(optimiser.update, return_shape=True)(params, state, params)
    count, slots = len(owners), len(jax.tree.leaves(state))
    if len(jax.tree.leaves(made[0])) != count or len(jax.tree.leaves(made[1])) != slots:
        raise ValueError("its update makes other trees than those of the params and the state")
    of = dependencies(update)
    on_state = of[:, count : count + slots]
    # Gradients, then parameters.
    on_leaves = np.concatenate([of[:, :count], of[:, count + slots :]], axis=1)
    # What the state depends on after any number of steps.
    known = np.concatenate([np.zeros((slots, count), bool), dependencies(init)], axis=1)
    before = None
    while before is None or (known != before).any():
        before, known = known, known | on_leaves[count:] | (on_state[count:] @ known)
    depends = on_leaves[:count] | (on_state[:count] @ known)
    for out, own in enumerate(owners):
        for place in map(int, np.flatnonzero(depends[out])):
            what, other = ("gradient", "params")[place // count], owners[place % count]
            if other != own:
                return Crossing(own, other, what)
    return None
