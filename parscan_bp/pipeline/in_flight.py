"""All that a pipeline holds between two steps, as named lists of leaves, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from parscan_bp.pipeline.block_run import BlockRun
from parscan_bp.pipeline.blocks import Network
from parscan_bp.pipeline.checkpoint import Entry
from parscan_bp.pipeline.executors.mail import Box
from parscan_bp.pipeline.fitting import listed, same_types
from parscan_bp.pipeline.programs import Reads
from parscan_bp.types import PyTree


def entries_of(runs: Sequence[BlockRun], box: Box) -> list[Entry]:
    """Of all blocks what they hold, and what is between them."""
    entries: list[Entry] = []

    def add(name: str, which: Sequence[Any], tree: PyTree) -> None:
        entries.append((name, list(which), jax.tree.leaves(tree)))

    for own in runs:
        k = own.number
        add("key", [k], own.key)
        for version, weights in own.weights.items():
            add("weights", [k, version], weights)
        for version, weights in own.predicted.items():
            add("predicted", [k, version], weights)
        for batch, weights in own.read.items():
            add("read", [k, batch], weights)
        add("state", [k], own.state)
        add("optimiser_state", [k], own.optimiser_state)
        for part, reads in own.inputs.items():
            add("inputs", [k, *part], reads)
        for part, pull in own.linearisations.items():
            add("linearisations", [k, *part], pull)
        for part, ct in own.cotangents.items():
            add("cotangents", [k, *part], ct)
        for batch, gradient in own.gradients.items():
            add("gradients", [k, batch], gradient)
        for number, state in enumerate(own.new_states):
            add("new_states", [k, number], state)
    for (what, where), value in box.items():
        add(what, where, value)
    return entries


OF_WEIGHTS = ("weights", "predicted", "read", "gradients")
"""Entries that are by number, and like the weights."""

TYPED = (*OF_WEIGHTS, "state", "new_states", "optimiser_state", "output", "inputs")
"""Entries whose shapes and dtypes are known before anything has run."""


class Structures:
    """What the leaves of each entry belong to, from the shapes of a part of a batch.

    Args:
      network: of the pipeline.
      runs: what its blocks hold at the start.
      x, labels: shapes and dtypes of a part.
    """

    def __init__(self, network: Network, runs: Sequence[BlockRun], x: PyTree, labels: PyTree):
        self._runs, self._labels = runs, labels
        # values[k] is the input of block k.
        self._values = [x, *(y for y, _ in network.outputs(x))]
        self._key = jax.eval_shape(lambda: network.key)

    def of(self, name: str, which: Sequence[int]) -> PyTree:
        """What is like an entry: of its structure and, if it is in `TYPED`, its types."""
        k = which[0]
        last = len(self._runs) - 1
        makes: dict[str, Callable[[], PyTree]] = {
            **dict.fromkeys(OF_WEIGHTS, lambda: self._runs[k].newest),
            "key": lambda: 0.0,
            "state": lambda: self._runs[k].state,
            "new_states": lambda: self._runs[k].state,
            "optimiser_state": lambda: self._runs[k].optimiser_state,
            "inputs": lambda: self._reads(k),
            "linearisations": lambda: self._runs[k].linear_of(self._reads(k)),
            "output": lambda: self._values[k + 1],
            "cotangents": lambda: 0.0 if k == last else self._values[k + 1],
            "cotangent": lambda: 0.0 if k == last else self._values[k + 1],
            "labels": lambda: self._labels,
            "loss": lambda: 0.0,
        }
        return makes[name]()

    def _reads(self, k: int) -> Reads:
        labels = self._labels if k == len(self._runs) - 1 else None
        return Reads(self._values[k], self._runs[k].state, self._key, labels)


def put_back(
    runs: Sequence[BlockRun], box: Box, structures: Structures, entries: Sequence[Entry]
) -> None:
    """Makes all blocks hold what `entries_of` found.

    Raises:
      ValueError: if what is there has other shapes or dtypes than this pipeline.
    """
    trees = [_whole(runs, structures, *entry) for entry in entries]
    for own in runs:
        own.weights.clear()
        own.predicted.clear()
    for (name, which, _), tree in zip(entries, trees, strict=True):
        if name in ("output", "labels", "cotangent", "loss"):
            box[name, tuple(which)] = tree  # type: ignore[index]
            continue
        own, rest = runs[which[0]], tuple(which[1:])
        if name in ("key", "state", "optimiser_state"):
            setattr(own, name, tree)
        elif name == "new_states":
            own.new_states.append(tree)
        elif name in OF_WEIGHTS:
            getattr(own, name)[rest[0]] = tree
        else:
            getattr(own, name)[rest] = tree


def _whole(
    runs: Sequence[BlockRun], structures: Structures, name: str, which: Sequence[int], leaves: Any
) -> PyTree:
    like = structures.of(name, which)
    structure: Any = jax.tree.structure(like)
    fits = structure.num_leaves == len(leaves)
    if fits and name in TYPED:
        fits = same_types(like, structure.unflatten(leaves))
    # An optimiser may make of its first state one of other dtypes.
    if not fits and name == "optimiser_state" and structure.num_leaves == len(leaves):
        fits = same_types(runs[which[0]].next_optimiser_state(), structure.unflatten(leaves))
    if not fits:
        raise ValueError(
            f"path: the {name} of block {which[0]} there are {listed(leaves)}; "
            f"{listed(jax.tree.leaves(like))}, those of this pipeline, are wanted"
        )
    return structure.unflatten(leaves)
