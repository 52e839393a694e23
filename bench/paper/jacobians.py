"""Table 1: transposed Jacobians of VGG-11's first layers, analytic against a column at a time.

Sparsity and the time to make all numbers of the transposed Jacobian, of the first convolution,
ReLU and max-pooling of VGG-11 on 32x32 images: in the structure that this package multiplies
(blocks of channels, a diagonal, a selection), and in compressed rows, as the paper. They are timed
against four generic ways; two of them are one column at a time, once as a compiled program and
once eagerly, as the paper did, and are never mixed. A column method is timed on a sample of
columns and its time multiplied up to all of them; the table and the file say so. For timings
that compare, pin it to one core: `taskset -c 0 python -m bench jacobians`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from matplotlib.figure import Figure

from bench.shared import figures, programs, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, effort, racing
from parscan_bp.layers import Coloured, Conv, Layer, MaxPool, ReLU
from parscan_bp.operators import ChannelDense, Operator, Sparse, to_structure
from parscan_bp.sparsity import Pattern

OWN, CSR = "analytic", "analytic CSR"
OURS = (OWN, CSR)
COMPILED, EAGER = "column VJP, jitted", "column VJP, eager"
BATCHED, COLOURED = "batched VJP", "coloured JVPs"


# What the paper's Table 1 says, at its size.
PAPER = {
    "convolution": {"sparsity": "0.99157", "speedup": 8.3e3},
    "ReLU": {"sparsity": "0.99998", "speedup": 1.2e6},
    "max-pooling": {"sparsity": "0.99994", "speedup": 1.5e5},
}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A layer at one input, whose transposed Jacobian is made.

    Attributes:
        name: of the layer.
        function: of the parameters and one input without a batch axis.
        params: its parameters; as constants of a program they would be folded into its result.
        x: the input.
        pattern: of the transposed Jacobian.
        own: makes it in the structure that this package multiplies.
        csr: makes its numbers in the order of the pattern.
        exact: whether they are copies, so that all methods have the same bits.
    """

    name: str
    function: Callable[[Any, jax.Array], jax.Array]
    params: Any
    x: jax.Array
    pattern: Pattern
    own: timing.Call
    csr: timing.Call
    exact: bool


@dataclasses.dataclass(frozen=True)
class Method:
    """A generic way to the same numbers: `call` makes `columns` of all columns."""

    call: timing.Call
    columns: int


def subjects(size: int, channels: int, seed: int) -> Iterator[Subject]:
    """The three layers, each at the output of the one before."""
    keys = jax.random.split(jax.random.key(seed), 2)
    image = jax.random.normal(keys[0], (size, size, 3), jnp.float32)
    conv = Conv(channels, (3, 3))
    params = conv.init(keys[1], image.shape, jnp.float32)

    def on_one(layer: Layer) -> Callable[[Any, jax.Array], jax.Array]:
        return lambda params, x: layer.apply(params, x[None])[0]

    adjoint = conv.adjoint_operator(params, image[None], image[None])
    # With a mask that keeps all of it, the kernel goes into compressed rows in one gather.
    whole = Pattern.from_mask(np.ones((params["kernel"][..., 0].size, channels)))
    masked = dataclasses.replace(adjoint, mask=whole)
    blocks = jax.jit(lambda adjoint: to_structure(adjoint, ChannelDense))
    entries = jax.jit(lambda adjoint: to_structure(adjoint, Sparse).data)
    yield Subject(
        "convolution",
        on_one(conv),
        params,
        image,
        to_structure(masked, Sparse).pattern,
        lambda: blocks(adjoint),
        lambda: entries(masked),
        exact=False,
    )
    x = on_one(conv)(params, image)
    for name, layer in (("ReLU", ReLU()), ("max-pooling", MaxPool((2, 2)))):
        y = on_one(layer)(None, x)
        own = jax.jit(lambda x, y, layer=layer: _operator(layer, x, y))
        csr = jax.jit(lambda x, y, own=own: to_structure(own(x, y), Sparse).data)
        yield Subject(
            name,
            on_one(layer),
            None,
            x,
            to_structure(own(x, y), Sparse).pattern,
            lambda x=x, y=y, own=own: own(x, y),
            lambda x=x, y=y, csr=csr: csr(x, y),
            exact=True,
        )
        x = y


def _operator(layer: Layer, x: jax.Array, y: jax.Array) -> Operator:
    return layer.adjoint_operator(None, x[None], y[None]).take(0)


def measure(subject: Subject, options: Options) -> Result:
    """Checks and times all methods for one layer.

    Raises:
        FloatingPointError: two methods do not agree.
    """
    methods = methods_of(subject, options)
    check(subject, np.asarray(subject.csr()), methods, options.columns)
    columns, measured = subject.pattern.shape[1], {}
    ours = {OWN: {"generate": subject.own}, CSR: {"generate": subject.csr}}
    for name, method in methods.items():
        outcome = timing.race({"generate": method.call}, ours, **effort(options))
        sample = {own: outcome.compare(own, "generate").to_json() for own in OURS}
        factor = columns / method.columns
        measured[name] = {
            "columns_timed": method.columns,
            "columns": columns,
            "extrapolated": factor != 1,
            "seconds": sample[OWN]["baseline"]["median"] * factor,
            "ratios": {
                own: {key: sample[own][key] * factor for key in ("speedup", "low", "high")}
                for own in OURS
            },
            "comparisons_of_the_sample": sample,
        }
    samples = [entry["comparisons_of_the_sample"] for entry in measured.values()]
    return {
        "shape": subject.pattern.shape,
        "nnz": subject.pattern.nnz,
        "sparsity": 1 - subject.pattern.fill,
        "dense_bytes": 4 * subject.pattern.shape[0] * subject.pattern.shape[1],
        "seconds": {
            own: float(np.median([each[own]["candidate"]["median"] for each in samples]))
            for own in OURS
        },
        "paper": PAPER[subject.name],
        "methods": measured,
    }


def methods_of(subject: Subject, options: Options) -> dict[str, Method]:
    """The generic ways, by name."""
    f, params, x = subject.function, subject.params, subject.x
    shape = jax.eval_shape(f, params, x).shape
    columns = subject.pattern.shape[1]
    one_by_one = jax.jit(functools.partial(_column, f))
    at_once = jax.jit(jax.vmap(functools.partial(_column, f), in_axes=(None, None, 0)))
    _, pull = jax.vjp(functools.partial(f, params), x)
    sample = [jnp.int32(i) for i in _spread(columns, options.columns)]
    few, batch = _spread(columns, options.eager_columns), _spread(columns, options.batch)
    inputs, outputs = subject.pattern.rows, subject.pattern.indices
    coloured = Coloured(f, outputs, inputs)
    compressed = jax.jit(lambda params, x: coloured.entries(params, x[None])[0])

    def eager() -> list[jax.Array]:
        made = []
        for i in few:
            basis = jnp.zeros(columns, x.dtype).at[i].set(1).reshape(shape)
            made.append(pull(basis)[0])
        return made

    return {
        COMPILED: Method(lambda: [one_by_one(params, x, i) for i in sample], len(sample)),
        EAGER: Method(eager, len(few)),
        BATCHED: Method(lambda: at_once(params, x, jnp.asarray(batch, jnp.int32)), len(batch)),
        COLOURED: Method(lambda: compressed(params, x), columns),
    }


def _column(f: Callable, params: Any, x: jax.Array, i: jax.Array) -> jax.Array:
    y, pull = jax.vjp(functools.partial(f, params), x)
    basis = jnp.zeros(y.size, y.dtype).at[i].set(1).reshape(y.shape)
    return pull(basis)[0].ravel()


def _spread(columns: int, sample: int) -> list[int]:
    """A sample of columns, evenly spread over all of them."""
    return np.linspace(0, columns - 1, min(sample, columns)).astype(int).tolist()


def check(subject: Subject, numbers: np.ndarray, methods: dict[str, Method], sample: int) -> None:
    """Raises FloatingPointError unless the methods make the numbers of the pattern."""
    pattern = subject.pattern
    matrix = sp.csr_matrix((numbers, pattern.indices, pattern.indptr), pattern.shape)
    wanted = matrix.tocsc()[:, _spread(pattern.shape[1], sample)].toarray().T
    allowed = 0.0 if subject.exact else 1e-6
    got = np.stack(methods[COMPILED].call())
    programs.check_equal(got, wanted, allowed, f"{subject.name}, sampled columns")
    own = to_structure(subject.own(), Sparse).data
    programs.check_equal(own, numbers, 0.0, f"{subject.name}, own structure")
    programs.check_equal(methods[COLOURED].call(), numbers, allowed, f"{subject.name}, all entries")


def draw(result: Result) -> dict[str, Figure]:
    """The seconds of every method for every layer."""
    rows = result["layers"]
    figure = figures.new(7.5, 3.8)
    axes = figure.subplots()
    names = [*OURS, COLOURED, BATCHED, COMPILED, EAGER]
    for k, name in enumerate(names):
        seconds = [
            row["seconds"][name] if name in OURS else row["methods"][name]["seconds"]
            for row in rows.values()
        ]
        places = np.arange(len(rows)) + (k - 2.5) * 0.14
        axes.bar(places, seconds, 0.13, label=name)
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), [f"{n}\n{r['sparsity']:.5f} zeros" for n, r in rows.items()])
    axes.set_ylabel("seconds for the whole transposed Jacobian")
    axes.set_title("Making transposed Jacobians; column methods extrapolated from a sample")
    figure.legend(fontsize=8, ncols=3, loc="outside lower center")
    return {"": figure}


def text(result: Result) -> str:
    """A line for each layer, then what was extrapolated."""
    header = ["layer", "shape", "nnz", "sparsity", "paper", *OURS, COLOURED, BATCHED]
    header += [COMPILED, "ratios", EAGER, "ratios", "paper's"]
    lines, samples = [], []
    for name, row in result["layers"].items():
        methods = row["methods"]
        line = [name, "x".join(map(str, row["shape"])), str(row["nnz"]), f"{row['sparsity']:.5f}"]
        line += [row["paper"]["sparsity"], *(tables.seconds(row["seconds"][o]) for o in OURS)]
        line += [tables.seconds(methods[method]["seconds"]) for method in (COLOURED, BATCHED)]
        for method in (COMPILED, EAGER):
            entry = methods[method]
            ratios = " / ".join(f"{entry['ratios'][ours]['speedup']:.2g}" for ours in OURS)
            line += [tables.seconds(entry["seconds"]), ratios]
        lines.append([*line, f"{row['paper']['speedup']:.2g}"])
        timed = ", ".join(
            f"{entry['columns_timed']} ({method})"
            for method, entry in methods.items()
            if entry["extrapolated"]
        )
        samples.append(f"{name}: extrapolated to {row['shape'][1]} columns from {timed}")
    notes = (
        "ratios: of the column method before them, to the own structure / to CSR; the paper's: "
        "its CSR routines to its eager column method, on its machine"
    )
    return "\n".join([tables.table(header, lines), *samples, notes])


BENCH = Bench(
    "jacobians",
    __doc__,
    baseline="one column at a time, by a compiled VJP and by an eager one",
    points=lambda options: {
        subject.name: subject for subject in subjects(options.image, options.channels, options.seed)
    },
    measure=measure,
    rows=Named("layers"),
    text=text,
    options=(
        Option("image", 32, "rows and columns of it"),
        Option("channels", 64, "of the convolution"),
        Option("columns", 100, "columns of a jitted sample"),
        Option("eager-columns", 20, "of an eager sample"),
        Option("batch", 128, "columns of one batched VJP"),
        Option("seed", 0),
        *racing(15, 5, 9.0),
    ),
    quick={"image": 8, "channels": 4, "columns": 6, "eager_columns": 3, "batch": 8},
    draw=draw,
    fixed=("seed", "image", "channels"),
)
