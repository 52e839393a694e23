"""Magnitude pruning, and retraining with the pruned weights kept at zero. Needs optax.

Masks are concrete arrays of bools in the shapes of the parameters. The transposed Jacobian of a
convolution with a pruned kernel has a static pattern that follows from the kernel's mask:

    pattern = Pattern.from_mask(mask.reshape(-1, mask.shape[-1]))
    operator = to_structure(dataclasses.replace(convolution, mask=pattern), Sparse)

and that of a pruned linear layer is the mask itself:

    operator = Sparse(kernel[mask], Pattern.from_mask(mask))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parscan_bp.types import PyTree

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
      params: pytree of concrete real arrays.
      sparsity: part to drop, in [0, 1].
      scope: "global" ranks the weights of all prunable leaves together (class-blind), "leaf"
        those of each leaf (class-uniform).
      prunable: function of a leaf's key path and the leaf; other leaves are kept whole.

    Returns:
      A pytree of the structure of ``params``, bools in each leaf's shape, true where it is kept.

    Raises:
      TypeError: if a prunable leaf is traced: a mask is static.
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
    # Written so that a NaN is refused.
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity: got {sparsity}; a part in [0, 1] is wanted")
    if scope not in SCOPES:
        raise ValueError(f"scope: got {scope!r}; one of {', '.join(SCOPES)} is wanted")
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
      ValueError: if the two are different pytrees, or a mask has another shape than its leaf.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.pruning import apply_masks
      >>> apply_masks(jnp.array([1.0, 2.0]), jnp.array([True, False])).tolist()
      [1.0, 0.0]
    """
    _check_masks("params", params, masks)
    return jax.tree.map(lambda mask, p: jnp.where(mask, p, 0), masks, params)


def keep_masks(masks: PyTree) -> optax.GradientTransformation:
    """The last of a chain of optax transformations: dropped weights are 0 after every step.

    The update of a dropped weight becomes minus the weight, whatever the optimiser before it
    proposes (momentum, weight decay) and whatever the weight was.

    Args:
      masks: as `magnitude_masks` returns them.

    Returns:
      The transformation. Its update needs ``params``, and raises `ValueError` without, or if the
      masks do not fit.

    Source: retraining of See, Luong, Manning, CoNLL 2016, section 3.3.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from parscan_bp.pruning import keep_masks
      >>> optimiser = optax.chain(optax.sgd(0.1), keep_masks(jnp.array([True, False])))
      >>> params = jnp.array([1.0, 2.0])
      >>> updates, _ = optimiser.update(jnp.ones(2), optimiser.init(params), params)
      >>> [round(float(p), 6) for p in optax.apply_updates(params, updates)]
      [0.9, 0.0]
    """

    def init(params):
        _check_masks("params", params, masks)
        return optax.EmptyState()

    def update(updates, state, params=None):
        if params is None:
            raise ValueError(
                "params: got None; keep_masks needs them, update(grads, state, params)"
            )
        _check_masks("updates", updates, masks)
        return jax.tree.map(lambda m, u, p: jnp.where(m, u, -p), masks, updates, params), state

    return optax.GradientTransformation(init, update)


def _magnitude(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
    name = jax.tree_util.keystr(path)
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"params{name}: got a traced array; a mask is static, prune outside of jit")
    magnitude = np.abs(np.asarray(leaf).astype(np.float64)).ravel()
    if np.isnan(magnitude).any():
        raise ValueError(f"params{name}: has a NaN, which has no magnitude to rank")
    return magnitude


def _largest(magnitude: np.ndarray, sparsity: float) -> np.ndarray:
    """(size,) bools: all but the ``round(sparsity * size)`` least."""
    kept = np.ones(magnitude.size, bool)
    order = np.argsort(magnitude, kind="stable")
    kept[order[: round(sparsity * magnitude.size)]] = False
    return kept


def _check_masks(name: str, tree: PyTree, masks: PyTree) -> None:
    got, wanted = str(jax.tree.structure(tree)), str(jax.tree.structure(masks))
    if got != wanted:
        raise ValueError(f"{name}: got a pytree {got}; that of the masks is {wanted}")
    for leaf, mask in zip(jax.tree.leaves(tree), jax.tree.leaves(masks), strict=True):
        if np.shape(leaf) != np.shape(mask):
            raise ValueError(
                f"{name}: got a leaf of shape {np.shape(leaf)}; its mask has {np.shape(mask)}"
            )
