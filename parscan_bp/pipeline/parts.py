"""What the parts of a batch count: weights, and whether their losses are that of the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import described
from parscan_bp.pipeline.blocks import Network
from parscan_bp.pipeline.programs import Loss, Reads, programs_of, random_key_of
from parscan_bp.types import Array, PyTree

Weight = Callable[[PyTree], Any]
"""Labels of a part to what the part counts, a real scalar."""

ROUNDING = 2.0**10
"""Units in the last place by which two ways to sum up a loss may differ."""


@dataclasses.dataclass(frozen=True)
class Weighed:
    """The loss of a part times its share, of which the plain mean is that of the batch.

    With w_i the weight of part i of M, and s_i = M w_i / (w_1 + ... + w_M),

        loss of the batch = (1 / M) sum_i s_i loss_i

    and gradients alike: whoever runs a pipeline takes means over parts, and knows of no weights.
    Labels are pairs (labels, share (1,)).
    """

    loss: Loss

    def __call__(self, y: PyTree, labels: PyTree) -> PyTree:
        labels, share = labels
        return jax.tree.map(lambda v: v * share[0].astype(v.dtype), self.loss(y, labels))


def check_weight(weight: Any) -> None:
    """Raises `TypeError` unless it is a function or ``None``."""
    if weight is not None and not callable(weight):
        raise TypeError(
            f"weight: got {described(weight)}; a function of the labels of a part, such as "
            "lambda labels: labels.valid.sum(), or None, is wanted"
        )


def shares(weight: Weight, labels: Sequence[PyTree]) -> Array:
    """What each part of a batch counts, beside a mean of 1; all alike if all weights are 0.

    Args:
      weight: as of `run`.
      labels: of each part.

    Raises:
      ValueError: if a weight is no real scalar, or does not take the labels.

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.pipeline.parts import shares
      >>> shares(jnp.sum, [jnp.array([1, 1, 1]), jnp.array([1, 0, 0])]).tolist()
      [1.5, 0.5]
    """
    try:
        made = [jnp.asarray(weight(own)) for own in labels]
    # Whatever a weight of the caller's raises.
    except Exception as error:
        raise ValueError(
            f"weight: it does not take the labels of a part: {error}; a function of them, such as "
            "lambda labels: labels.valid.sum(), is wanted"
        ) from error
    for each in made:
        if each.shape or jnp.issubdtype(each.dtype, jnp.complexfloating):
            raise ValueError(
                f"weight: of the labels of a part it makes {each.dtype}{list(each.shape)}; a real "
                "scalar is wanted, such as the number of rows that count"
            )
    # Counts have no precision of their own, and shares are rounded to that of the loss.
    weights = jnp.stack(made).astype(float)
    total = weights.sum()
    return jnp.where(total == 0, 1, len(made) * weights / total)


def check_parts(network: Network, loss: Loss, pairs: Sequence[tuple[PyTree, PyTree]]) -> None:
    """Compares the loss of the first batch with the mean of those of its parts.

    Outputs of the last block are put together to that of the batch: whatever blocks do with the
    rows of a part, such as batch norm and dropout, is no matter of the loss.

    Args:
      network, loss, pairs: as of `check_fit`.

    Raises:
      ValueError: if they differ by more than rounding.
    """
    if len(pairs) < 2:
        return
    outputs = [_output(network, i, x) for i, (x, _) in enumerate(pairs)]
    labels = [jax.device_get(own) for _, own in pairs]
    of_part = jax.jit(loss)
    each = np.array([of_part(y, own) for y, own in zip(outputs, labels, strict=True)])
    plain = loss
    if isinstance(loss, Weighed):
        plain, labels = loss.loss, [own for own, _ in labels]
    rows = len(jax.tree.leaves(pairs[0][0])[0])
    whole = np.asarray(jax.jit(plain)(_together(outputs, rows), _together(labels, rows)))
    wanted, mean = float(whole), float(np.mean(each, dtype=np.float64))
    floats = [leaf.dtype for leaf in jax.tree.leaves((outputs, labels, whole)) if _inexact(leaf)]
    eps = max(float(jnp.finfo(dtype).eps) for dtype in floats)
    # Half precision has no more than 8 bits.
    allowed = min(ROUNDING * eps, 2.0**-4) * np.max(np.abs([wanted, *each.astype(np.float64)]))
    same = abs(wanted - mean) <= allowed or (np.isnan(wanted) and np.isnan(mean))
    if not same and wanted != mean:
        raise ValueError(
            f"loss: of the first batch it is {wanted:.6g}, but the mean of its {len(pairs)} parts "
            f"{mean:.6g}: they would be trained on another gradient than the batch has. Where it "
            "is a mean over some of the rows or tokens, those that are no padding, give weight=, a "
            "function of the labels of a part that says how many those are (and make the loss of "
            "a part without any finite). A loss that is no mean over rows wants a schedule "
            "without parts"
        )


def _output(network: Network, part: int, x: PyTree) -> PyTree:
    """What the last block makes of a part of the first batch."""
    blocks, params, states, key = network
    for k, block in enumerate(blocks):
        reads = Reads(x, states[k], random_key_of(key, k, 0, part), None)
        try:
            # From the host: the next block may have its parameters on another device.
            x = jax.device_get(programs_of(block, None, k == 0).forward(params[k], reads)[0])
        except Exception as error:
            error.add_note(f"in blocks[{k}], of a part of the first batch")
            raise
    return x


def _together(parts: Sequence[PyTree], rows: int) -> PyTree:
    """Of the batch: rows one after the other; of what has none the mean."""

    def joined(*leaves: Any) -> Any:
        if np.shape(leaves[0])[:1] == (rows,):
            return np.concatenate(leaves)
        return np.mean(leaves, axis=0).astype(leaves[0].dtype)

    return jax.tree.map(joined, *parts)


def _inexact(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
