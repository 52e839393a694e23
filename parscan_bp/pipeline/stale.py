"""`stale`: any optimiser, on gradients that come too late."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import as_int, check_optimiser, described
from parscan_bp.pipeline.fitting import listed
from parscan_bp.pipeline.optimiser_state import missing_arguments
from parscan_bp.pipeline.programs import Optimiser
from parscan_bp.pipeline.remedies import Remedy
from parscan_bp.pipeline.remedies.apply import as_remedies, update_with
from parscan_bp.pipeline.separable import why_not_separable
from parscan_bp.pipeline.stale_state import Queued, Stage, StaleState
from parscan_bp.types import PyTree


def stale(optimiser: Any, delays: PyTree, *, remedies: Sequence[Remedy] = ()) -> Any:
    """An optimiser that gets every gradient some steps late, each stage its own number.

    With g(n) the gradient that `update` is given in step n, stage k does nothing in its first d_k
    steps, and in step n >= d_k what ``optimiser`` does with g_k(n - d_k):

        w_k(n + 1) = w_k(n) + u_k(g_k(n - d_k))

    That is training by a pipeline without the pipeline, of any model: with d_k = K - 1 - k the
    weights of stage k move as with `PipeDream` (or `DelayedGradients`), and with d = 1 for all as
    with `PipeDream2BW`, step n of them being update n - d_k. `DSP` and `FeaturesReplay` mix in one
    gradient weights of several ages (DSP eq. 5): no gradient of a step is late there, it never was
    the gradient at any point, and no transformation of gradients makes it. `run` does, and takes
    the same remedies.

    Each stage has an optimiser state of its own, which its first gradient touches first: step
    counters and moments do not see the steps before. Beside that a stage keeps d_k gradients:
    sum_k d_k |theta_k| numbers in all. A delay of 0 is the optimiser itself, bit for bit.

    Args:
      optimiser: of optax.
      delays: d_k, an integer of at least 0 for all parameters, or a pytree of them that is a prefix
        of the parameters.
      remedies: what is done about it, in this order, to stages that are late: see `Remedy`.

    Returns:
      An optimiser of the same kind, with `StaleState`. Compile what calls it: outside of `jax.jit`
      every call compiles the branch between waiting and updating anew.

    Raises:
      TypeError: if ``optimiser`` or a remedy is none, or a delay no integer.
      ValueError: if a delay is negative; by `init` and `update`, if delays are no prefix; by
        `init`, if the optimiser does not take the parameters of a stage, as one with labels or a
        mask for all of them, which goes around:
        ``optax.multi_transform({label: stale(optimiser, delay)}, labels)``.
      NotImplementedError: by `init`, or by `update` with more arguments, if there are several
        stages and the update of one depends on the gradient of another one.

    Source: the delays of PipeDream (SOSP 2019), section 3.3, and of PipeDream-2BW (ICML 2021).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import parscan_bp as pb
      >>> optimiser = pb.pipeline.stale(optax.sgd(1.0), {"early": 2, "late": 0})
      >>> params = {"early": jnp.zeros(()), "late": jnp.zeros(())}
      >>> state = optimiser.init(params)
      >>> for n in range(4):
      ...     gradient = {"early": jnp.float32(n), "late": jnp.float32(n)}
      ...     updates, state = optimiser.update(gradient, state, params)
      ...     print({name: int(-u) for name, u in updates.items()})
      {'early': 0, 'late': 0}
      {'early': 0, 'late': 1}
      {'early': 0, 'late': 2}
      {'early': 1, 'late': 3}
    """
    check_optimiser(optimiser)
    remedies = as_remedies(remedies)
    paths, prefix = jax.tree_util.tree_flatten_with_path(delays)
    if not paths:
        raise TypeError(
            f"delays: got {described(delays)}; an int of at least 0, or a pytree of them, is wanted"
        )
    structure: Any = prefix
    late = [as_int(f"delays{jax.tree_util.keystr(path)}", d, least=0) for path, d in paths]

    def split(name: str, tree: PyTree) -> list[PyTree]:
        try:
            return structure.flatten_up_to(tree)
        except ValueError as error:
            raise ValueError(f"delays: got {delays}, no prefix of {name}: {error}") from None

    def init(params: PyTree) -> StaleState:
        parts = split("params", params)
        if len(parts) > 1:
            for (path, _), part in zip(paths, parts, strict=True):
                _check_takes(optimiser, f"delays{jax.tree_util.keystr(path)}", part)
        try:
            _check_separable(optimiser, parts, late)
        except TypeError as error:
            # Of the arguments that `update` is to be given nothing is known yet.
            if not missing_arguments(error):
                raise
        own = [_start(optimiser, d, remedies, p) for d, p in zip(late, parts, strict=True)]
        return StaleState(structure.unflatten(own))

    def update(updates: PyTree, state: StaleState, params: PyTree = None, **extra: Any):
        if not isinstance(state, StaleState):
            raise TypeError(
                f"state: got {described(state)}; that of this optimiser's init is wanted"
            )
        gradients = split("updates", updates)
        stages = split("state.stages", state.stages)
        _check_like_waiting(gradients, stages)
        parts = [None] * len(late) if params is None else split("params", params)
        own_update = functools.partial(_given, optimiser.update, extra)
        if extra:
            like = gradients if params is None else parts
            _check_separable(optimiser._replace(update=own_update), like, late)
        made = [
            _step(own_update, d, remedies, *own)
            for d, *own in zip(late, gradients, stages, parts, strict=True)
        ]
        out, new = zip(*made, strict=True)
        return structure.unflatten(out), StaleState(structure.unflatten(new))

    return optimiser._replace(init=init, update=update)


def _check_takes(optimiser: Any, where: str, params: PyTree) -> None:
    """Raises `ValueError` unless it is an optimiser of the stage, as labels for all are none."""
    try:
        jax.eval_shape(optimiser.init, params)
    # Whatever an optimiser, or the caller's labels, raise of a tree that they are not for.
    except Exception as error:
        raise ValueError(
            f"optimiser: it does not take {listed(params)}, the params of the stage at {where}; "
            "each stage has an optimiser of its own. Labels or a mask for all params go around: "
            "optax.multi_transform({label: stale(optimiser, delay)}, labels), with a delay for "
            "each label"
        ) from error


def _check_like_waiting(gradients: Sequence[PyTree], stages: Sequence[Stage]) -> None:
    """Raises `ValueError` unless gradients are as those that wait: of what `init` was given."""
    for gradient, stage in zip(gradients, stages, strict=True):
        if not stage.queue:
            continue
        waiting = jax.tree.map(
            lambda q: jax.ShapeDtypeStruct(q.shape[1:], q.dtype), stage.queue.gradient
        )
        got, wanted = (
            (jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)])
            for tree in (gradient, waiting)
        )
        if got != wanted:
            raise ValueError(
                f"updates: got {listed(gradient)}; {listed(waiting)}, as the params that init was "
                "given, is wanted"
            )


def _check_separable(optimiser: Any, stages: Sequence[PyTree], late: Sequence[int]) -> None:
    if why := why_not_separable(optimiser, stages):
        or_one = f"; or delays={late[0]}, one stage of all" if len(set(late)) == 1 else ""
        raise NotImplementedError(
            f"optimiser: {why}, as where a global norm is taken, or all have to be finite; stages "
            "have gradients of different steps, and each an optimiser of its own. Wanted is one "
            f"whose update depends on nothing of other stages{or_one}"
        )


def _given(update: Any, extra: dict[str, Any], *args: PyTree) -> Any:
    """The update with more arguments, errors saying what there was."""
    try:
        return update(*args, **extra)
    except TypeError as error:
        missing = missing_arguments(error)
        if missing is None:
            raise
        raise TypeError(
            f"optimiser: its update wants {missing} beside gradients, state and params; "
            "update(gradients, state, params, ...) hands them on to every stage as they are"
        ) from error


def _start(optimiser: Optimiser, delay: int, remedies: Sequence[Remedy], params: PyTree) -> Stage:
    inner = optimiser.init(params)
    if delay == 0:
        return Stage((), (), inner, ())
    entry = Queued(params, tuple(remedy.stored(params) for remedy in remedies))
    queue = jax.tree.map(lambda a: jnp.zeros((delay, *jnp.shape(a)), jnp.result_type(a)), entry)
    own = tuple(remedy.init(delay, params) for remedy in remedies)
    return Stage(jnp.zeros((), jnp.int32), queue, inner, own)


def _step(
    update: Any,
    delay: int,
    remedies: Sequence[Remedy],
    gradient: PyTree,
    stage: Stage,
    params: PyTree,
) -> tuple[PyTree, Stage]:
    """Puts a gradient into the queue of a stage, and uses the one that comes out."""
    if delay == 0:
        updates, inner = update(gradient, stage.inner, params)
        return updates, stage._replace(inner=inner)
    if params is None and remedies:
        raise ValueError("params: got None; remedies need them, update(grads, state, params)")
    slot = stage.count % delay
    entry = Queued(gradient, tuple(remedy.stored(params) for remedy in remedies))
    out = jax.tree.map(lambda q: lax.dynamic_index_in_dim(q, slot, keepdims=False), stage.queue)
    queue = jax.tree.map(lambda q, a: q.at[slot].set(a.astype(q.dtype)), stage.queue, entry)

    def arrived():
        late = out.gradient, out.stored, params, stage.inner, stage.remedies
        return update_with(remedies, delay, update, *late)

    def waiting():
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(arrived)[0])
        return zeros, stage.inner, stage.remedies

    updates, inner, own = lax.cond(stage.count >= delay, arrived, waiting)
    count = jnp.where(stage.count + 1 == 2 * delay, delay, stage.count + 1)
    return updates, Stage(count, queue, inner, own)
