"""Products of transposed Jacobians planned ahead of time against scipy's sparse products.

A plan is made once from two static patterns; what is timed is the product of the numbers. scipy
finds the pattern of its product each time, which is what its interface allows. Its matrices are
the same, once with every entry of the static patterns and once without the zeros of ReLU and
max-pooling, which its routine then skips.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from matplotlib.figure import Figure

from bench.shared import figures, programs, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, effort, racing
from parscan_bp import trees
from parscan_bp.layers import Conv, MaxPool, ReLU
from parscan_bp.operators import (
    ChannelDense,
    Diagonal,
    Operator,
    Selection,
    Sparse,
    compose,
    compose_cost,
    compose_shape,
    to_structure,
)
from parscan_bp.operators.conversions import channel_diagonal
from parscan_bp.pruning import magnitude_masks
from parscan_bp.sparsity import Pattern, multiply, plan_blocks, plan_product

PLANNED, STATIC, DROPPED = "planned", "scipy", "scipy, zeros dropped"
PRUNED = 0.97
VECTORS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A product A_1 A_2 ... of transposed Jacobians.

    Attributes:
        name: of the case.
        make: its factors, from a random key.
        target: the speedup over scipy that is asked for, if one is.
        rows: scipy multiplies every rows-th row of A_1, and its seconds count that many times.
    """

    name: str
    make: Callable[[jax.Array], tuple[Operator, ...]]
    target: float | None = None
    rows: int = 1


def cases(quick: bool) -> list[Case]:
    """The products: of VGG-11's first layers, of convolutions, of pruned convolutions."""
    size, image, wide = (6, 8, 4) if quick else (8, 32, 64)
    channels = [(2, 3, 3, 1)] if quick else [(8, 16, 16, 1), (32, 64, 64, 1), (64, 128, 128, 8)]
    channels += [] if quick else [(128, 256, 256, 32)]
    pruned = [(4, 8, 8)] if quick else [(64, 128, 128), (128, 256, 256)]
    vgg, blocks, partial = _vgg_entries, _conv_relu_conv, functools.partial
    found = [
        Case("conv1.relu1, entries", partial(vgg, image, 3, wide), 5.0),
        Case("conv2.relu2, entries", partial(vgg, image // 2, wide, 2 * wide)),
        Case("conv1.relu1.pool1, blocks", partial(_vgg_blocks, image, wide)),
    ]
    for i, j, k, rows in channels:
        name, target = f"conv.relu.conv {i}-{j}-{k}, blocks", 15.0 if i >= 32 else None
        found.append(Case(name, partial(blocks, size, (i, j, k)), target, rows))
    for i, j, k in pruned:
        name = f"pruned conv.conv {i}-{j}-{k}, entries"
        found.append(Case(name, partial(_pruned, size, (i, j, k)), 2.0))
    return found


def _convolution(size: int, channels: tuple[int, int], key: jax.Array) -> Operator:
    """The transposed Jacobian of a 3x3 convolution of a square image, random weights."""
    layer, x = Conv(channels[1], (3, 3)), jnp.zeros((1, size, size, channels[0]), jnp.float32)
    return layer.adjoint_operator(layer.init(key, x.shape[1:], jnp.float32), x, x)


def _relu(size: int, channels: int, key: jax.Array) -> Diagonal:
    x = jax.random.normal(key, (1, size * size * channels), jnp.float32)
    return ReLU().adjoint_operator(None, x, x).take(0)  # type: ignore[return-value]


def _vgg_entries(size: int, inputs: int, outputs: int, key: jax.Array) -> tuple[Operator, ...]:
    first, second = jax.random.split(key)
    conv = to_structure(_convolution(size, (inputs, outputs), first), Sparse)
    return conv, _relu(size, outputs, second)


def _vgg_blocks(size: int, channels: int, key: jax.Array) -> tuple[Operator, ...]:
    first, second = jax.random.split(key)
    conv = to_structure(_convolution(size, (3, channels), first), ChannelDense)
    layer, x = MaxPool((2, 2)), jax.random.normal(second, (1, size, size, channels), jnp.float32)
    pool = layer.adjoint_operator(None, x, layer.apply(None, x)).take(0)
    return conv, _relu(size, channels, second), pool


def _conv_relu_conv(
    size: int, channels: tuple[int, int, int], key: jax.Array
) -> tuple[Operator, ...]:
    first, second, third = jax.random.split(key, 3)
    convs = zip((channels[:2], channels[1:]), (first, second), strict=True)
    a, b = (to_structure(_convolution(size, c, k), ChannelDense) for c, k in convs)
    return a, _relu(size, channels[1], third), b


def _pruned(size: int, channels: tuple[int, int, int], key: jax.Array) -> tuple[Operator, ...]:
    convs = zip((channels[:2], channels[1:]), jax.random.split(key), strict=True)
    factors = []
    for pair, own in convs:
        conv = _convolution(size, pair, own)
        kept = magnitude_masks(conv.kernel, PRUNED)
        mask = Pattern.from_mask(kept.reshape(-1, kept.shape[-1]))
        factors.append(to_structure(dataclasses.replace(conv, mask=mask), Sparse))
    return tuple(factors)


# One program each, where there is nothing to plan; a plan is an argument of the library's own.
_scaled = jax.jit(compose)


def product(factors: Sequence[Operator]) -> Operator:
    """A_1 A_2 ..., from the left."""

    def times(left: Operator, right: Operator) -> Operator:
        return (_scaled if isinstance(right, Diagonal) else compose)(right, left)

    return functools.reduce(times, factors)


def _plans(factors: Sequence[Operator]) -> dict[str, Any]:
    """Bytes and seconds of the plans of a product, and its scalar multiplications."""
    # Other cases have the same positions: each pays for its own plan.
    for planner in (multiply, plan_blocks, plan_product):
        planner.cache_clear()
    left, nbytes, seconds, multiplications = factors[0], 0, 0.0, 0
    for right in factors[1:]:
        clock = timing.Stopwatch()
        nbytes += trees.nbytes(_plan(left, right))
        seconds += clock.lap()
        flops = compose_cost(right, left).flops
        multiplications += flops if isinstance(right, Diagonal) else flops // 2
        left = compose_shape(right, left)
    return {
        "plan_bytes": nbytes,
        "plan_seconds": seconds,
        "multiplications": multiplications,
        # Two int32 indices for each.
        "element_plan_bytes": 8 * multiplications,
    }


def _plan(left: Operator, right: Operator) -> Any:
    """The plan that `compose` makes and keeps; a diagonal needs none."""
    if isinstance(left, Sparse) and isinstance(right, Sparse):
        return plan_product(left.pattern, right.pattern)
    if isinstance(left, ChannelDense) and isinstance(right, ChannelDense):
        return plan_blocks(left.pattern, right.pattern)
    if isinstance(left, ChannelDense) and isinstance(right, Selection):
        return plan_product(left.pattern, channel_diagonal(right)[0])
    return None


def measure(case: Case, options: Options) -> Result:
    """Checks and times one product.

    Raises:
        FloatingPointError: the planned product is not scipy's.
    """
    factors = jax.block_until_ready(case.make(jax.random.key(options.seed)))
    plans = _plans(factors)
    matrices = [_csr(factor) for factor in factors]
    matrices[0] = matrices[0][:: case.rows]
    smaller = [matrix.copy() for matrix in matrices]
    for matrix in smaller:
        matrix.eliminate_zeros()
    ours, theirs = product(factors), functools.reduce(operator.matmul, matrices)
    error = _check(case, ours, theirs)
    nnz = ours.leaves()[0][0].size
    del ours, theirs
    calls = {
        STATIC: lambda: functools.reduce(operator.matmul, matrices),
        PLANNED: lambda: product(factors),
        DROPPED: lambda: functools.reduce(operator.matmul, smaller),
    }
    sides = {name: {"product": call} for name, call in calls.items()}
    outcome = timing.race(sides.pop(STATIC), sides, **effort(options))
    compared = {name: outcome.compare(name, "product").to_json() for name in sides}
    planned = compared[PLANNED]
    seconds = {name: entry["candidate"]["median"] for name, entry in compared.items()}
    seconds[STATIC] = planned["baseline"]["median"]
    for name in (STATIC, DROPPED):
        seconds[name] *= case.rows
    return {
        **plans,
        "nnz": nnz,
        "rows": case.rows,
        "target": case.target,
        "error": error,
        "seconds": seconds,
        **{key: planned[key] * case.rows for key in ("speedup", "low", "high")},
        "speedup_over_dropped": seconds[DROPPED] / seconds[PLANNED],
        "comparisons": compared,
    }


def _csr(op: Operator) -> sp.csr_matrix:
    sparse = to_structure(op, Sparse)
    pattern = sparse.pattern
    arrays = (np.asarray(sparse.data), pattern.indices, pattern.indptr)
    return sp.csr_matrix(arrays, sparse.shape, copy=True)


def _check(case: Case, ours: Operator, theirs: sp.csr_matrix) -> float:
    """The products applied to random vectors: every entry takes part."""
    vectors = np.random.default_rng(0).standard_normal((VECTORS, ours.shape[1]))
    got = ours.matvec(jnp.asarray(vectors, jnp.float32))[:, :: case.rows]
    wanted = (theirs.astype(np.float64) @ vectors.T).T
    return programs.check_equal(wanted, got, 1e-5, f"{case.name}, applied to random vectors")


def draw(result: Result) -> dict[str, Figure]:
    """Two bars for each product, and what its plan takes."""
    rows = result["cases"]
    figure = figures.new(8.5, 0.55 * len(rows) + 1.4)
    axes = figure.subplots()
    places, shown = np.arange(len(rows)), list(reversed(rows.values()))
    whole, dropped = ([r[k] for r in shown] for k in ("speedup", "speedup_over_dropped"))
    axes.barh(places + 0.2, whole, 0.36, label="over scipy")
    axes.barh(places - 0.2, dropped, 0.36, label="over scipy with the zeros dropped")
    for place, row in zip(places, shown, strict=True):
        plan = f"plan {tables.size(row['plan_bytes'])}"
        axes.text(row["speedup"] * 1.03, place + 0.2, plan, va="center", size=8)
        figures.mark(axes, row["target"], place)
    figures.ratios(axes, list(reversed(rows)))
    both = [*whole, *dropped, 1.0]
    axes.set_xlim(min(both) / 2, 3 * max(both))
    axes.set_xlabel("speedup of the planned product (black: what is asked for)")
    axes.legend(fontsize=8, loc="lower right")
    return {"": figure}


def text(result: Result) -> str:
    """A line for each product."""
    header = ["product", "multiplications", "nnz", "plan", "plan by entries", "plan time"]
    header += ["scipy", "zeros dropped", PLANNED, "ratio [95 %]", "over dropped", "asked"]
    lines = []
    for name, row in result["cases"].items():
        every = f" (1 of {row['rows']} rows)" if row["rows"] > 1 else ""
        plan = [tables.size(row[key]) for key in ("plan_bytes", "element_plan_bytes")]
        seconds = [row["plan_seconds"], *(row["seconds"][k] for k in (STATIC, DROPPED, PLANNED))]
        counts = [f"{row[key]:.3g}" for key in ("multiplications", "nnz")]
        ratios = [tables.speedup(row), f"{row['speedup_over_dropped']:.2f}"]
        asked = f"{row['target']:g}x" if row["target"] else ""
        times = map(tables.seconds, seconds)
        lines.append([name + every, *counts, *plan, *times, *ratios, asked])
    return tables.table(header, lines)


BENCH = Bench(
    "spgemm",
    __doc__,
    baseline="scipy's sparse products",
    points=lambda options: {case.name: case for case in cases(options.quick)},
    measure=measure,
    rows=Named("cases"),
    text=text,
    options=(Option("seed", 0), *racing(15, 3)),
    draw=draw,
)
