"""Products of transposed Jacobians planned ahead of time against scipy's sparse products.

A plan is made once from two static patterns; what is timed is the product of the numbers. scipy
finds the pattern of its product each time, which is what its interface allows. Its matrices are
the same, once with every entry of the static patterns and once without the zeros of ReLU and
max-pooling, which its routine then skips. cuSPARSE, through cupy, joins in on a GPU.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from bench import figures, programs, record, tables, timing
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
from parscan_bp.pruning import magnitude_masks
from parscan_bp.sparsity import Pattern, multiply, plan_blocks, plan_product

PLANNED, STATIC, DROPPED, CUSPARSE = "planned", "scipy", "scipy, zeros dropped", "cuSPARSE"
PRUNED = 0.97
VECTORS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A product A_1 A_2 ... of transposed Jacobians.

    Attributes:
        name: of the case.
        make: its factors, from a random key.
        target: the speedup over scipy that is asked for, if one is.
        rows: scipy multiplies every rows-th row of A_1, and its time counts that many times.
    """

    name: str
    make: Callable[[jax.Array], tuple[Operator, ...]]
    target: float | None = None
    rows: int = 1


def main(argv: Sequence[str]) -> None:
    """Checks and times all cases, prints a table, writes JSON and a figure.

    Raises:
        FloatingPointError: a planned product is not scipy's.
    """
    options = _parser().parse_args(argv)
    run = record.environment(argv)
    cases = _cases(options.quick)
    chosen = [case for case in cases if not options.cases or case.name in options.cases]
    path = record.result_path(options)
    # Some cases measured again take their places among the others of the file.
    old = json.loads(path.read_text()) if options.cases and path.exists() else None
    rows = {case.name: _measure(case, options) for case in tqdm(chosen, desc="cases")}
    rows = {**(old["cases"] if old else {}), **rows}
    result = {
        "runs": [*(old["runs"] if old else []), {**run, "load_end": record.load_average()}],
        "settings": {
            "note": "where rows is above 1, scipy multiplies every rows-th row of the first "
            "factor, and its seconds are multiplied by that",
            "cusparse": _no_cusparse() or "timed",
        },
        "cases": rows,
    }
    record.write(path, result)
    _draw(rows, path.with_suffix(".png"))
    print(_text(result))


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("spgemm")
    parser = argparse.ArgumentParser("python -m bench spgemm", parents=[shared])
    names = [case.name for case in _cases(False)]
    parser.add_argument(
        "--cases", nargs="+", choices=names, help="these again, others as in the file"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=15.0, help="seconds for each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    return parser


def _cases(quick: bool) -> list[Case]:
    size, image, wide = (6, 8, 4) if quick else (8, 32, 64)
    channels = [(2, 3, 3, 1)] if quick else [(8, 16, 16, 1), (32, 64, 64, 1), (64, 128, 128, 8)]
    channels += [] if quick else [(128, 256, 256, 32)]
    pruned = [(4, 8, 8)] if quick else [(64, 128, 128), (128, 256, 256)]
    return [
        Case("conv1.relu1, entries", functools.partial(_vgg_entries, image, 3, wide), 5.0),
        Case("conv2.relu2, entries", functools.partial(_vgg_entries, image // 2, wide, 2 * wide)),
        Case("conv1.relu1.pool1, blocks", functools.partial(_vgg_blocks, image, wide)),
        *(
            Case(
                f"conv.relu.conv {i}-{j}-{k}, blocks",
                functools.partial(_conv_relu_conv, size, (i, j, k)),
                15.0 if i >= 32 else None,
                rows,
            )
            for i, j, k, rows in channels
        ),
        *(
            Case(
                f"pruned conv.conv {i}-{j}-{k}, entries",
                functools.partial(_pruned, size, (i, j, k)),
                2.0,
            )
            for i, j, k in pruned
        ),
    ]


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
        return plan_product(left.pattern, right.channel_diagonal()[0])
    return None


def _measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
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
    rivals = {
        PLANNED: {"product": lambda: product(factors)},
        DROPPED: {"product": lambda: functools.reduce(operator.matmul, smaller)},
    }
    if _no_cusparse() is None:
        rivals[CUSPARSE] = {"product": _cusparse(matrices)}
    outcome = timing.race(
        {"product": lambda: functools.reduce(operator.matmul, matrices)},
        rivals,
        rounds=options.rounds,
        min_rounds=min(options.rounds, 3),
        budget=options.budget,
    )
    compared = {name: outcome.compare(name, "product").to_json() for name in rivals}
    seconds = {name: entry["candidate"]["median"] for name, entry in compared.items()}
    seconds[STATIC] = compared[PLANNED]["baseline"]["median"]
    for name in (STATIC, DROPPED):
        seconds[name] *= case.rows
    planned = compared[PLANNED]
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


def _no_cusparse() -> str | None:
    """Why cuSPARSE is not timed, if it is not."""
    if importlib.util.find_spec("cupy") is None:
        return "skipped: cupy is not installed"
    if jax.default_backend() != "gpu":
        return "skipped: jax has no GPU"
    return None


def _cusparse(matrices: Sequence[sp.csr_matrix]) -> timing.Call:
    cupy = importlib.import_module("cupy")
    library = importlib.import_module("cupyx.scipy.sparse")
    on_device = [library.csr_matrix(matrix) for matrix in matrices]

    def call() -> None:
        functools.reduce(operator.matmul, on_device)
        cupy.cuda.Device().synchronize()

    return call


def _draw(rows: dict[str, Any], path) -> None:
    figure = figures.new(8.5, 0.55 * len(rows) + 1.4)
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    axes.barh(places + 0.2, [r["speedup"] for r in rows.values()], 0.36, label="over scipy")
    dropped = [r["speedup_over_dropped"] for r in rows.values()]
    axes.barh(places - 0.2, dropped, 0.36, label="over scipy with the zeros dropped")
    for place, row in zip(places, rows.values(), strict=True):
        plan = tables.size(row["plan_bytes"])
        axes.text(row["speedup"] * 1.03, place + 0.2, f"plan {plan}", va="center", size=8)
        if row["target"]:
            axes.plot([row["target"]] * 2, [place - 0.4, place + 0.4], color="black", lw=1.5)
    axes.set_xscale("log")
    ratios = [*(r["speedup"] for r in rows.values()), *dropped, 1.0]
    axes.set_xlim(min(ratios) / 2, 3 * max(ratios))
    axes.set_yticks(places, list(rows))
    axes.axvline(1, color="grey", lw=0.8)
    axes.set_xlabel("speedup of the planned product (black: what is asked for)")
    axes.legend(fontsize=8, loc="lower right")
    figures.save(figure, path)


def _text(result: dict[str, Any]) -> str:
    header = ["product", "multiplications", "nnz", "plan", "plan by entries", "plan time"]
    header += ["scipy", "zeros dropped", PLANNED, "ratio [95 %]", "over dropped", "asked"]
    lines = []
    for name, row in result["cases"].items():
        seconds = [row["seconds"][key] for key in (STATIC, DROPPED, PLANNED)]
        every = f" (1 of {row['rows']} rows)" if row["rows"] > 1 else ""
        lines.append(
            [
                name + every,
                f"{row['multiplications']:.3g}",
                f"{row['nnz']:.3g}",
                tables.size(row["plan_bytes"]),
                tables.size(row["element_plan_bytes"]),
                tables.seconds(row["plan_seconds"]),
                *map(tables.seconds, seconds),
                tables.interval(row["speedup"], row["low"], row["high"]),
                f"{row['speedup_over_dropped']:.2f}",
                f"{row['target']:g}x" if row["target"] else "",
            ]
        )
    return "\n".join([tables.table(header, lines), f"cuSPARSE: {result['settings']['cusparse']}"])
