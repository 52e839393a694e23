"""Magnitude pruning, and retraining with the pruned weights kept at zero.

Masks are concrete arrays of bools in the shapes of the parameters. The transposed Jacobian of a
convolution with a pruned kernel has a static pattern that follows from the kernel's mask:

    pattern = Pattern.from_mask(mask.reshape(-1, mask.shape[-1]))
    operator = to_structure(dataclasses.replace(convolution, mask=pattern), Sparse)

and that of a pruned linear layer is the mask itself:

    operator = Sparse(kernel[mask], Pattern.from_mask(mask))
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import check_array, check_optimiser, described
from parscan_bp.types import PyTree

__all__ = ["apply_masks", "is_kernel", "keep_masks", "magnitude_masks"]

SCOPES = ("global", "leaf")


def is_kernel(path: tuple[Any, ...], leaf: Any) -> bool:
    """Whether a parameter has two axes or more: kernels, not biases or scales."""
    del path
    return np.ndim(leaf) >= 2


def magnitude_masks(
    params: PyTree,
    sparsity: float,
    *,
    scope: str = "global",
    prunable: Callable[[tuple[Any, ...], Any], bool] = is_kernel,
) -> PyTree:
    """Masks that drop the given part of the weights, those of the least magnitude.

    Exactly ``round(sparsity * weights)`` weights are dropped, in all prunable leaves together or
    in each. Of equal magnitudes the first are dropped.

    Args:
      params: pytree of concrete arrays.
      sparsity: part to drop, in [0, 1].
      scope: "global" ranks the weights of all prunable leaves together (class-blind), "leaf"
        those of each leaf (class-uniform).
      prunable: function of a leaf's key path and the leaf; other leaves are kept whole.

    Returns:
      A pytree of the structure of ``params``, bools in each leaf's shape, true where it is kept.

    Raises:
      TypeError: if an argument is none such; if a prunable leaf is traced, as a mask is static, or
        no array of numbers.
      ValueError: if ``sparsity`` is outside [0, 1], ``scope`` is unknown, no leaf is prunable, or
        a prunable leaf has a NaN, which has no rank.

    Source: See, Luong, Manning, CoNLL 2016, section 3.2; BPPSA section 4.3 prunes 97 % so.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.pruning import magnitude_masks
      >>> params = {"kernel": jnp.array([[3.0, -1.0], [0.5, -2.0]]), "bias": jnp.zeros(2)}
      >>> masks = magnitude_masks(params, 0.5)
      >>> masks["kernel"].tolist(), masks["bias"].tolist()
      ([[True, False], [False, True]], [True, True])
    """
    if isinstance(sparsity, bool) or not isinstance(sparsity, numbers.Real):
        raise TypeError(f"sparsity: got {described(sparsity)}; a part in [0, 1] is wanted")
    # Written so that a NaN is refused.
    if not 0 <= float(sparsity) <= 1:
        raise ValueError(f"sparsity: got {sparsity}; a part in [0, 1] is wanted")
    if scope not in SCOPES:
        raise ValueError(f"scope: got {scope!r}; one of {', '.join(SCOPES)} is wanted")
    if not callable(prunable):
        raise TypeError(
            f"prunable: got {described(prunable)}; a function of a leaf's path and the leaf is "
            "wanted"
        )
    leaves, treedef = jax.tree.flatten_with_path(params)
    masks = [np.ones(np.shape(leaf), bool) for _, leaf in leaves]
    chosen = [k for k, (path, leaf) in enumerate(leaves) if prunable(path, leaf)]
    if not chosen:
        raise ValueError(
            "params: no leaf is prunable; the default prunes leaves with at least two axes, "
            "prunable= says otherwise"
        )
    magnitudes = {k: _magnitude(*leaves[k]) for k in chosen}
    groups = [chosen] if scope == "global" else [[k] for k in chosen]
    for group in groups:
        kept = _largest(np.concatenate([magnitudes[k] for k in group]), sparsity)
        for k in group:
            masks[k], kept = kept[: masks[k].size].reshape(masks[k].shape), kept[masks[k].size :]
    return jax.tree.unflatten(treedef, masks)


def apply_masks(params: PyTree, masks: PyTree) -> PyTree:
    """The parameters, 0 where the masks are false.

    Raises:
      TypeError: if a mask is none of bools, as where the two are swapped.
      ValueError: if the two are different pytrees, or a mask has another shape than its leaf.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.pruning import apply_masks
      >>> apply_masks(jnp.array([1.0, 2.0]), jnp.array([True, False])).tolist()
      [1.0, 0.0]
    """
    _check_masks("params", params, masks)
    return jax.tree.map(lambda mask, p: jnp.where(mask, p, 0), masks, params)


def keep_masks(optimiser: Any, masks: PyTree) -> Any:
    """An optimiser after whose every step the dropped weights are 0.

    The update of a dropped weight becomes minus the weight, whatever the optimiser proposes
    (momentum, weight decay) and whatever the weight was. It stands around all else that makes an
    update: a transformation after it in an `optax.chain` would change updates again.

    Args:
      optimiser: of optax.
      masks: as `magnitude_masks` returns them.

    Returns:
      An optimiser of the same kind with the same state. Its update needs ``params``.

    Raises:
      TypeError: if ``optimiser`` is none, or a mask is none of bools.
      ValueError: by `init` and `update`, if the masks do not fit; by `update` without ``params``.

    Source: retraining of See, Luong, Manning, CoNLL 2016, section 3.3.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from parscan_bp.pruning import keep_masks
      >>> optimiser = keep_masks(optax.sgd(0.1), jnp.array([True, False]))
      >>> params = jnp.array([1.0, 2.0])
      >>> updates, _ = optimiser.update(jnp.ones(2), optimiser.init(params), params)
      >>> [round(float(p), 6) for p in optax.apply_updates(params, updates)]
      [0.9, 0.0]
    """
    check_optimiser(optimiser)
    _check_bools(masks)

    def init(params):
        _check_masks("params", params, masks)
        return optimiser.init(params)

    def update(updates, state, params=None, **extra):
        if params is None:
            raise ValueError(
                "params: got None; keep_masks needs them, update(grads, state, params)"
            )
        _check_masks("updates", updates, masks)
        updates, state = optimiser.update(updates, state, params, **extra)
        return jax.tree.map(lambda m, u, p: jnp.where(m, u, -p), masks, updates, params), state

    return optimiser._replace(init=init, update=update)


def _magnitude(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
    name = jax.tree_util.keystr(path)
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"params{name}: got a traced array; a mask is static, prune outside of jit")
    check_array(f"params{name}", np.asarray(leaf), "an array of numbers is wanted")
    wide = np.complex128 if np.iscomplexobj(leaf) else np.float64
    magnitude = np.abs(np.asarray(leaf).astype(wide)).ravel()
    if np.isnan(magnitude).any():
        raise ValueError(f"params{name}: has a NaN, which has no magnitude to rank")
    return magnitude


def _largest(magnitude: np.ndarray, sparsity: float) -> np.ndarray:
    """(size,) bools: all but the ``round(sparsity * size)`` least."""
    kept = np.ones(magnitude.size, bool)
    order = np.argsort(magnitude, kind="stable")
    kept[order[: round(sparsity * magnitude.size)]] = False
    return kept


def _check_bools(masks: PyTree) -> None:
    for path, mask in jax.tree.leaves_with_path(masks):
        if getattr(getattr(mask, "dtype", None), "kind", None) != "b":
            raise TypeError(
                f"masks{jax.tree_util.keystr(path)}: got {described(mask)}; an array of bools is "
                "wanted, as of magnitude_masks"
            )


def _check_masks(name: str, tree: PyTree, masks: PyTree) -> None:
    _check_bools(masks)
    got, wanted = str(jax.tree.structure(tree)), str(jax.tree.structure(masks))
    if got != wanted:
        raise ValueError(f"{name}: got a pytree {got}; that of the masks is {wanted}")
    own = jax.tree.leaves_with_path(tree)
    for (path, leaf), mask in zip(own, jax.tree.leaves(masks), strict=True):
        if np.shape(leaf) != np.shape(mask):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)}: got shape {np.shape(leaf)}; its mask has "
                f"{np.shape(mask)}"
            )
