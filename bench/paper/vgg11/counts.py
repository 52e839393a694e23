"""Flops of every step of every scan over VGG-11's convolutional part, in each convention."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from bench.paper.vgg11 import schedules, step_counts
from bench.paper.vgg11.step_counts import FULL_WEIGHTS, ZEROS
from parscan_bp.layers import (
    Conv,
    Flatten,
    Layer,
    MaxPool,
    activations,
    adjoint_operators,
)
from parscan_bp.operators import Operator

WORKERS = (1, 2, 4, 8)


def features(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers before the head."""
    flatten = next(k for k, layer in enumerate(layers) if isinstance(layer, Flatten))
    return tuple(layers[:flatten])


def names(layers: Sequence[Layer]) -> list[str]:
    """conv1, relu1, pool1, conv2, ..., as the papers call them."""
    seen: dict[str, int] = {}
    found = []
    for layer in layers:
        kind = {Conv: "conv", MaxPool: "pool"}.get(type(layer), "relu")
        seen[kind] = seen.get(kind, 0) + 1
        found.append(f"{kind}{seen[kind]}")
    return found


def span_name(span: schedules.Span, of: Sequence[str]) -> str:
    """``pool3..conv6``: the first and the last layer whose Jacobians are multiplied."""
    low, high = (of[len(of) - k] for k in span)
    return low if low == high else f"{high}..{low}"


def jacobians(layers: Sequence[Layer], params: Any, image: jax.Array) -> list[Operator]:
    """The transposed Jacobians for one image, in the layers' order, without a batch axis."""

    @jax.jit
    def make(params: Any, image: jax.Array) -> list[Operator]:
        xs = activations(layers, params, image[None])
        return [op.take(0) for op in adjoint_operators(layers, params, xs)]

    return make(params, image)


def count(layers: Sequence[Layer], params: Any, image: jax.Array) -> dict[str, Any]:
    """Counts every scan in every convention.

    Args:
        layers: the convolutional part.
        params: of these layers, pruned ones 0.
        image: whose zeros count as known in the convention that knows them.

    Returns:
        The layers' names; ``bp``, the largest step and the sum of unpruned back-propagation; and
        by convention the `_scan` of every truncation.
    """
    operators, of = jacobians(layers, params, image), names(layers)
    channels = [image.shape[-1]]
    for layer in layers:
        channels.append(layer.channels if isinstance(layer, Conv) else channels[-1])
    n = len(layers)
    found: dict[str, Any] = {}
    for zeros in tqdm(ZEROS, desc="counting", unit="convention"):
        made = zip(operators, channels[:-1], strict=True)
        factors = [step_counts.factor(op, width, zeros) for op, width in made]
        products = step_counts.Products(factors[::-1])
        found[zeros] = {
            "nnz": [own.nnz for own in factors],
            "sparsity": [1 - own.nnz / np.prod(own.shape, dtype=float) for own in factors],
            "scans": {
                str(levels): _scan(products, schedules.truncated(n, levels), of)
                for levels in range(schedules.depth(n) + 1)
            },
        }
    return {"layers": of, **compare(found)}


def _scan(
    products: step_counts.Products, steps: Sequence[schedules.Step], of: Sequence[str]
) -> dict[str, Any]:
    """The steps of one scan in columns, and its critical path by number of workers."""
    counted = products.count(steps)
    flops = [own["flops"] for own in counted]
    paths = {str(w): step_counts.path_length(steps, flops, w) for w in WORKERS}
    return {
        "steps": {
            "name": [span_name(step.span, of) for step in steps],
            "kind": [step.kind for step in steps],
            "phase": [step.phase for step in steps],
            **{name: [own[name] for own in counted] for name in counted[0]},
        },
        "path": {**paths, "unlimited": step_counts.path_length(steps, flops)},
    }


def compare(found: dict[str, Any]) -> dict[str, Any]:
    """Adds to each scan its ratios to both baselines: unpruned BP, and its own linear scan."""
    dense = found[FULL_WEIGHTS]["scans"]["0"]["steps"]["flops"]
    for own in found.values():
        linear = own["scans"]["0"]["steps"]["flops"]
        for scan in own["scans"].values():
            flops, path = np.array(scan["steps"]["flops"]), scan["path"]["unlimited"]
            scan["above_bp"] = int((flops > max(dense)).sum())
            scan["above_linear"] = int((flops > max(linear)).sum())
            scan["path_to_bp"], scan["path_to_linear"] = path / sum(dense), path / sum(linear)
    return {"bp": {"largest": max(dense), "total": sum(dense)}, "conventions": found}
