"""What range costs: a chain of Jacobian products, plain float32 against mantissas and exponents.

The product of n random normal matrices grows like exp(c n), beyond float32 after about 90 of
them at size 8. Timed are two ways to form it: as a tree, level by level, and in blocks, all
blocks advancing together and a tree over their ends. The scaled product is compared with a
float64 QR recursion: for P = Q_n R_n ... R_1, ||P e_1|| is the product of the R's first entries,
and its logarithm their sum, which overflows nowhere.

Source: the QR recursion is that of Benettin, Galgani, Giorgilli, Strelcyn, Meccanica 15 (1980).
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bench.shared import programs, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, effort, racing
from parscan_bp.operators import Dense, Operator, Scaled, compose

PLAIN, SCALED = "plain", "scaled"
OPERATORS: dict[str, Callable[[jax.Array], Operator]] = {
    PLAIN: Dense,
    SCALED: lambda matrices: Scaled.of(Dense(matrices)),
}


def tree(stack: Operator, length: int) -> Operator:
    """The product A_n ... A_1 of a stack, neighbours first: log2(n) batched compositions."""
    while length > 1:
        pairs = length // 2
        product = compose(_every(stack, 0, 2 * pairs), _every(stack, 1, 2 * pairs))
        if length % 2:
            last = jax.tree.map(lambda leaf: leaf[-1:], stack)
            product = jax.tree.map(lambda *parts: jnp.concatenate(parts), product, last)
        stack = product
        length -= pairs
    return jax.tree.map(lambda leaf: leaf[0], stack)


def blocks(stack: Operator, length: int) -> Operator:
    """The same product in sqrt(n) blocks: each step composes one map onto every block."""
    size = math.isqrt(length)
    count = length // size
    whole = jax.tree.map(lambda leaf: _steps_first(leaf[: count * size], count), stack)
    first, others = (jax.tree.map(lambda leaf: leaf[part], whole) for part in (0, slice(1, None)))
    ends, _ = jax.lax.scan(lambda done, step: (compose(done, step), None), first, others)
    rest = jax.tree.map(lambda leaf: leaf[count * size :], stack)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), ends, rest)
    return tree(joined, count + length - count * size)


METHODS: dict[str, Callable[[Operator, int], Operator]] = {"tree": tree, "blocks": blocks}


def log_norm_by_qr(matrices: np.ndarray) -> float:
    """log ||A_n ... A_1 e_1|| in float64."""
    basis, total = np.eye(matrices.shape[-1]), 0.0
    for matrix in tqdm(matrices, desc="float64 QR", unit="step", mininterval=1.0):
        basis, upper = np.linalg.qr(matrix.astype(np.float64) @ basis)
        total += math.log(abs(upper[0, 0]))
    return total


def log_norm(product: Operator) -> float:
    """log ||P e_1|| of a computed product; the largest exponent is added in float64."""
    if isinstance(product, Scaled):
        exponents = np.asarray(product.exponent)[:, 0]
        largest = int(exponents.max())
        column = np.ldexp(_first_column(product.mantissa), exponents - largest)
    else:
        largest, column = 0, _first_column(product)
    norm = float(np.linalg.norm(column))
    return math.log(norm) + largest * math.log(2) if norm else -math.inf


def _first_column(product: Operator) -> np.ndarray:
    return np.asarray(product.as_dense(), np.float64)[:, 0]


@dataclasses.dataclass(frozen=True)
class Chain:
    """Matrices, how their product is formed, and its logarithm in float64."""

    matrices: jax.Array
    multiply: Callable[[Operator, int], Operator]
    exact: float

    def program(self, kind: str) -> programs.Program:
        """The product of the matrices as operators of one kind."""
        length = len(self.matrices)
        form = lambda matrices: self.multiply(OPERATORS[kind](matrices), length)  # noqa: E731
        return programs.build(form, self.matrices)


def points(options: Options) -> dict[str, Chain]:
    """One chain, by every method."""
    shape = (options.length, options.size, options.size)
    matrices = jax.random.normal(jax.random.key(options.seed), shape, jnp.float32)
    exact = log_norm_by_qr(np.asarray(matrices))
    return {method: Chain(matrices, METHODS[method], exact) for method in options.methods}


def measure(chain: Chain, options: Options) -> Result:
    """Compares the scaled product with float64 and times both.

    Raises:
        FloatingPointError: the scaled product's norm is wrong.
    """
    made = {kind: chain.program(kind) for kind in OPERATORS}
    logs = {kind: log_norm(program.call()) for kind, program in made.items()}
    # A product of long stretches, each nearly of rank one (u v^T), loses 1/|v.u| of its digits.
    # For random directions that factor has a Cauchy tail: the errors add up like n, not sqrt(n).
    allowed = 1e-4 + 16 * float(np.finfo(np.float32).eps) * len(chain.matrices)
    error = abs(logs[SCALED] - chain.exact)
    if not error <= allowed:
        raise FloatingPointError(f"log norm {logs[SCALED]} is off by {error}, allowed {allowed}")
    sides = {kind: {"product": program.call} for kind, program in made.items()}
    outcome = timing.race(sides[PLAIN], {SCALED: sides[SCALED]}, **effort(options))
    return {
        "log_norm": logs[SCALED],
        "log_norm_float64": chain.exact,
        "error": error,
        "allowed": allowed,
        "plain_is_finite": math.isfinite(logs[PLAIN]),
        "programs": programs.to_json(made),
        "comparison": outcome.compare(SCALED, "product").to_json(),
    }


def _every(stack: Operator, start: int, stop: int) -> Operator:
    return jax.tree.map(lambda leaf: leaf[start:stop:2], stack)


def _steps_first(leaf: jax.Array, count: int) -> jax.Array:
    # (blocks * steps, ...) -> (steps, blocks, ...): consecutive maps lie in one block.
    return jnp.swapaxes(leaf.reshape(count, -1, *leaf.shape[1:]), 0, 1)


def text(result: Result) -> str:
    """A line for each method."""
    header = ["product", PLAIN, SCALED, "plain/scaled [95 %]", "A/A", "temp", "error of log norm"]
    rows = []
    for method, entry in result["methods"].items():
        pair, made = entry["comparison"], entry["programs"]
        memory = " / ".join(tables.size(made[kind]["temp_bytes"]) for kind in OPERATORS)
        error = f"{entry['error']:.1e} of {entry['log_norm']:.6g}"
        ratio = [tables.speedup(pair), f"{pair['again']:.2f}"]
        rows.append([method, *tables.medians(pair), *ratio, memory, error])
    lost = [m for m, entry in result["methods"].items() if not entry["plain_is_finite"]]
    ends = f"plain leaves float32's range in: {', '.join(lost)}" if lost else "plain stays finite"
    settings = result["settings"]
    title = f"{settings['length']} matrices of {settings['size']} x {settings['size']}, float32"
    return "\n".join([title, tables.table(header, rows), ends])


BENCH = Bench(
    "scaled",
    __doc__,
    baseline="the same products without exponents",
    points=points,
    measure=measure,
    rows=Named("methods"),
    text=text,
    options=(
        Option("length", 10**6, "matrices in the chain"),
        Option("size", 8, "rows of each"),
        Option("methods", list(METHODS), choices=list(METHODS)),
        Option("seed", 0),
        *racing(15, 15),
    ),
    quick={"length": 203},
    fixed=("seed", "length", "size"),
)
