"""The points of the grid, most telling first, and the numbers that are trained on there.

Source: Wang, Bai, Pekhimenko, BPPSA (MLSys 2020): figure 8, tables 4 and 5 (a vanilla RNN on
bitstreams), tables 3 and 6 (a GRU on features of music, here of the same shapes but random).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.grids import workloads
from bench.paper.recurrent import bitstream
from bench.shared import candidates, programs

RNN, GRU, LSTM = "elman", "gru", "lstm"
LEARNING_RATE = 1e-5
# Coefficients and frames of the three data sets.
_SETS = {"S": (38, 259), "M": (24, 517), "L": (12, 1034)}


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """A point of the grid: a cell on `length` steps of `batch` rows of `inputs` numbers."""

    cell: str
    inputs: int
    hidden: int
    batch: int
    length: int
    dtype: str = "float32"

    def __str__(self) -> str:
        short = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.cell} H={self.hidden} B={self.batch} T={self.length}{short}"


def _rnn(length: int, batch: int = 16, hidden: int = 20) -> Shape:
    return Shape(RNN, 1, hidden, batch, length)


def _gru(name: str, batch: int = 16) -> Shape:
    inputs, length = _SETS[name]
    return Shape(GRU, inputs, 20, batch, length)


MAIN = _rnn(1000)
LONG = (MAIN, *(_rnn(length) for length in (30000, 10000, 3000)))
FULL = (
    MAIN,
    _rnn(30000),
    _rnn(30000, 2),
    *(_gru(name) for name in ("S", "L", "M")),
    _rnn(100),
    _rnn(1000, 256),
    Shape(LSTM, 32, 32, 16, 1000),
    Shape(GRU, 64, 64, 4, 16384),
    Shape(RNN, 1, 20, 16, 1000, "bfloat16"),
    _rnn(10000),
    _rnn(1000, 2),
    _rnn(3000),
    *(_rnn(length) for length in (300, 10, 30)),
    *(_rnn(1000, batch) for batch in (64, 4, 128, 8, 32)),
    *(_gru(name, batch) for batch in (64, 32) for name in _SETS),
)
TABLED = (
    _rnn(10),
    _rnn(100),
    _rnn(1000, 2),
    MAIN,
    _rnn(10000),
    _rnn(1000, 256),
    _rnn(30000),
)
"""The rows of README's table, cheap ones first: there, all of its columns are timed."""
ALL_SIDES = (MAIN, _rnn(30000), _gru("S"), _rnn(100))
"""Where those are timed, too, whose long compilation says little new elsewhere."""
CHEAP_FIRST = (
    *TABLED,
    *sorted((s for s in FULL if s not in TABLED), key=lambda s: s.hidden**2 * s.batch * s.length),
)
"""All of them, for a run that may be stopped."""
QUICK = (MAIN, _rnn(100), _rnn(1000, 64), _gru("S"))
REHEARSAL = (_rnn(6, 2, 3), Shape(GRU, 2, 3, 2, 5))


@dataclasses.dataclass(frozen=True)
class Workload:
    """A point of the grid with its numbers.

    Attributes:
        cell: the library's cell.
        params: of the cell and of the linear map after it, see `bitstream.init`.
        batch: the inputs (T, B, inputs) and a label for each row.
    """

    cell: Any
    params: dict[str, Any]
    batch: bitstream.Batch

    @property
    def point(self) -> dict[str, Any]:
        """What is differentiated: weights and inputs."""
        return {"params": self.params, "inputs": self.batch.inputs}

    def loss(self, scan: candidates.Scan) -> programs.Loss:
        """The loss as a function of `(point, labels)`."""

        def loss(point: Any, labels: Any) -> jax.Array:
            batch = bitstream.Batch(point["inputs"], labels)
            return bitstream.loss(self.cell, scan, point["params"], batch)

        return loss

    def dense_loss(self, scan: candidates.Scan) -> programs.Loss:
        """A loss that reads the output of every step, so that gradients show every one's part."""

        def loss(point: Any, labels: Any) -> jax.Array:
            inputs, params = point["inputs"], point["params"]
            size = params["head"].shape[0]
            first = self.cell.initial_carry((inputs.shape[1],), size, inputs.dtype)
            _, ys = scan(functools.partial(self.cell, params["cell"]), first, inputs)
            weights = jnp.cos(jnp.arange(ys.size, dtype=jnp.float32)).reshape(ys.shape)
            return (weights * ys).sum() / ys.size**0.5

        return loss

    def training_loss(self, scan: candidates.Scan) -> programs.Loss:
        """The loss as a function of `(params, batch)`."""
        return functools.partial(bitstream.loss, self.cell, scan)


def make(shape: Shape, seed: int) -> Workload:
    """Draws parameters, inputs and labels: bits for the RNN, normal numbers for the others."""
    drawn = _drawn(shape, seed)
    if shape.dtype == "float32":
        return drawn
    short = lambda tree: jax.tree.map(lambda a: a.astype(shape.dtype), tree)  # noqa: E731
    batch = drawn.batch._replace(inputs=short(drawn.batch.inputs))
    return Workload(drawn.cell, short(drawn.params), batch)


def _drawn(shape: Shape, seed: int) -> Workload:
    """In float32."""
    cell = workloads.LIBRARY_CELLS[shape.cell]
    rng = np.random.default_rng(seed)
    params = bitstream.init(cell, jax.random.key(seed), shape.hidden, shape.inputs)
    if shape.cell == RNN:
        streams = bitstream.draw(rng, shape.batch, shape.length)
        return Workload(cell, params, streams.batch(np.arange(shape.batch)))
    inputs = rng.normal(size=(shape.length, shape.batch, shape.inputs)).astype(np.float32)
    labels = rng.integers(bitstream.CLASSES, size=shape.batch).astype(np.int32)
    return Workload(cell, params, bitstream.Batch(jnp.asarray(inputs), jnp.asarray(labels)))
