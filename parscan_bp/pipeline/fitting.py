"""Whether blocks, loss and data fit together, from shapes alone, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import described
from parscan_bp.pipeline.blocks import Block, Network, as_block
from parscan_bp.pipeline.parts import Weight, check_parts, shares
from parscan_bp.pipeline.programs import Loss
from parscan_bp.types import PyTree


def as_blocks(name: str, things: Any) -> list[Block]:
    """The blocks that the entries of a sequence stand for.

    Raises:
      TypeError: if it is none, or one of them is no block; says which.
    """
    if isinstance(things, str | Mapping) or not isinstance(things, Iterable):
        raise TypeError(
            f"{name}: got {described(things)}; a sequence is wanted, a block of a network in each "
            "entry"
        )
    blocks = []
    for k, thing in enumerate(things):
        try:
            blocks.append(as_block(thing))
        except TypeError as error:
            raise TypeError(f"{name}[{k}]: {error}") from None
    return blocks


def one_each(name: str, values: Any, blocks: int) -> list[PyTree]:
    """A list of what there is for each block, its types no longer weak: an update makes such.

    Raises:
      TypeError, ValueError: if it is no sequence, or of another length.
    """
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence):
        raise TypeError(
            f"{name}: got {described(values)}; a sequence, one for each block, is wanted"
        )
    if len(values) != blocks:
        raise ValueError(f"{name}: got {len(values)} for {blocks} blocks; one for each is wanted")
    return jax.tree.map(_strongly_typed, list(values))


def _strongly_typed(leaf: Any) -> Any:
    """Of a Python number, or an array of a weak type, the array of its dtype."""
    weak = isinstance(leaf, bool | int | float | complex) or getattr(leaf, "weak_type", False)
    return jnp.asarray(leaf, _dtype(leaf)) if weak else leaf


def check_batch(
    number: int, batch: Any, parts: int, name: str, weight: Weight | None = None
) -> list[tuple[PyTree, PyTree]]:
    """The parts of a batch that enters, each a pair of data and labels; with a weight, of data and
    what `Weighed` takes.

    Arrays of NumPy are copied: labels, and inputs that a backward pass reads again, stay in a
    pipeline while the caller may fill the next batch into the same memory.

    Raises:
      TypeError: if it is no pair.
      ValueError: if its leading axis is not a multiple of the parts, or a weight is no scalar.
    """
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise TypeError(f"batches[{number}]: got {described(batch)}; a pair (x, labels) is wanted")
    batch = jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, batch)
    rows = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if parts == 1:
        return [batch]
    if len(rows) != 1 or not min(rows) or min(rows)[0] % parts:
        raise ValueError(
            f"batches[{number}]: got leading axes of {sorted(rows)}; {name} divides every batch "
            f"into {parts} parts: the same multiple of {parts} is wanted for all arrays"
        )
    size = min(rows)[0] // parts
    cut = lambda i: jax.tree.map(lambda a: a[i * size : (i + 1) * size], batch)  # noqa: E731
    pairs = [cut(i) for i in range(parts)]
    if weight is None:
        return pairs
    share = shares(weight, [labels for _, labels in pairs])
    return [(x, (labels, share[i : i + 1])) for i, (x, labels) in enumerate(pairs)]


def check_fit(network: Network, loss: Loss, pairs: Sequence[tuple[PyTree, PyTree]]) -> None:
    """Raises `ValueError` naming the block that does not take what the one below makes.

    Also if a block changes the shapes of its state, the loss is no real scalar, or that of the
    batch is not the mean of those of its parts.

    Args:
      network: of a run.
      loss: of a part; `Weighed` if parts have weights.
      pairs: the parts of the first batch.
    """
    x, labels = pairs[0]
    outputs = network.outputs(x)
    for k, params in enumerate(network.params):
        check_trained(k, params)
        try:
            y, state = next(outputs)
        # Whatever a block of the caller's raises.
        except Exception as error:
            below = f"what blocks[{k - 1}] makes" if k else "the data"
            raise ValueError(
                f"blocks[{k}]: it does not take {below}, {listed(x)}: {error}"
            ) from error
        if _types(state) != _types(network.states[k]):
            raise ValueError(
                f"blocks[{k}]: its state {_told(network.states[k])} becomes {_told(state)}; "
                "the same is wanted"
            )
        x = y
    try:
        value = jax.eval_shape(loss, x, labels)
    # Whatever a loss of the caller's raises.
    except Exception as error:
        raise ValueError(
            f"loss: it does not take what the last block makes, {listed(x)}, and the "
            f"labels, {listed(labels)}: {error}; a function (output, labels) -> scalar is wanted"
        ) from error
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise ValueError(f"loss: makes {listed(value)}; a real scalar is wanted")
    check_parts(network, loss, pairs)


def check_trained(k: int, params: PyTree) -> None:
    """Raises `TypeError` unless all parameters of block k are real or complex numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(_dtype(leaf), jnp.inexact):
            raise TypeError(
                f"params[{k}]{jax.tree_util.keystr(path)}: got {listed(leaf)}; all parameters are "
                "trained, and floats are wanted. What is not trained belongs into the state"
            )


def check_alike(name: str, trees: Sequence[PyTree]) -> None:
    """Raises `ValueError` unless all are of the same shapes, dtypes and names."""
    for k, tree in enumerate(trees):
        if _types(tree) != _types(trees[0]):
            raise ValueError(
                f"{name}[{k}]: got {listed(tree)}, but {listed(trees[0])} in {name}[0]; the same "
                "is wanted"
            )


def check_like(name: str, got: PyTree, wanted: PyTree) -> None:
    """Raises `ValueError` unless both are of the same structure, shapes and dtypes."""
    if not same_types(got, wanted):
        raise ValueError(f"{name}: got {listed(got)}; {listed(wanted)} is wanted")


def same_types(a: PyTree, b: PyTree) -> bool:
    """Whether both are of the same structure, and on a device of the same shapes and dtypes."""
    return _types(a) == _types(b)


def listed(tree: PyTree) -> str:
    """Its structure, with shapes and dtypes for arrays: (float32[4,8], int32[4])."""
    short = lambda a: f"{_dtype(a)}[{','.join(map(str, np.shape(a)))}]"  # noqa: E731
    return str(jax.tree.map(short, tree)).replace("'", "")


def check_one_shape(network: Network, x: PyTree) -> None:
    """Raises `ValueError` unless the block makes of x what is like x, and both are numbers that
    errors are of."""
    if not all(jnp.issubdtype(_dtype(leaf), jnp.inexact) for leaf in jax.tree.leaves(x)):
        raise ValueError(
            f"batches[0]: a part of the data is {listed(x)}; one program for all stages sends an "
            "error down for each leaf, and floats are wanted. executor=Threads() runs any"
        )
    try:
        y, _ = next(network.outputs(x))
    except Exception:
        return  # told by `check_fit`
    if _types(y) != _types(x):
        raise ValueError(
            f"block: it makes {listed(y)} of {listed(x)}; one program for all stages takes "
            "blocks that keep shape and dtype. executor=Threads() runs any"
        )


def _types(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.shape(leaf), _dtype(leaf)) for leaf in leaves]


def _dtype(leaf: Any) -> Any:
    """As on a device; of keys, too, which have no result type."""
    if not hasattr(leaf, "dtype"):
        return jnp.result_type(leaf)
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf.dtype if is_key else jax.dtypes.canonicalize_dtype(leaf.dtype)


def _told(tree: PyTree) -> str:
    """Dtype and shape of all leaves, by their names."""
    return ", ".join(
        f"{jax.tree_util.keystr(path)} {_dtype(leaf)}{list(np.shape(leaf))}".strip()
        for path, leaf in jax.tree.leaves_with_path(tree)
    )
