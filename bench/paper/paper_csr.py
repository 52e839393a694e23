"""The paper's own CSR routines: transposed Jacobians of a 3x3 convolution, ReLU, max-pooling.

Algorithms 2 to 10 of BPPSA, appendix D, line for line but for the loops, which are array
operations here. They are what the paper measures and a check on the builders of this package,
which hold for any geometry. Features of one example are ravelled (channels, height, width) here,
the order of the paper; everywhere else in this package channels come last.

The printed formulas of Algorithm 2 and 3 count 3 w (3 h - 2) entries per pair of channels: rows of
the image at its top and bottom have two rows of neighbours, but every pixel has three columns. At
the left and right edge one of them does not exist. Its entry points to a pixel of the
neighbouring image row (modulo the size of the matrix) and Algorithm 4 stores an explicit zero.
The pattern without these, (3 w - 2) (3 h - 2) entries, is that of `Convolution` made `Sparse`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from parscan_bp.operators import Sparse
from parscan_bp.types import Array

Csr = tuple[np.ndarray, np.ndarray]


def convolution(weights: Array, height: int, width: int) -> Sparse:
    """The transposed Jacobian of a 3x3 convolution with stride 1 and padding 1.

    Args:
      weights: (out, in, 3, 3).
      height, width: of the image; at least 2 and 3, or an entry would occur twice.

    Returns:
      (in height width) x (out height width), explicit zeros at column edges.

    Raises:
      ValueError: if a size is another.

    Source: BPPSA Algorithms 2 to 4.

    Example:
      >>> import jax.numpy as jnp
      >>> from bench.paper import paper_csr
      >>> op = paper_csr.convolution(jnp.ones((64, 3, 3, 3)), 32, 32)
      >>> op.shape, op.pattern.nnz == 3 * 32 * (3 * 32 - 2) * 3 * 64
      ((3072, 65536), True)
    """
    if weights.ndim != 4 or weights.shape[2:] != (3, 3):
        raise ValueError(f"weights: got shape {tuple(weights.shape)}; (out, in, 3, 3) is wanted")
    if height < 2 or width < 3:
        raise ValueError(f"height, width: got {height}, {width}; at least 2 and 3 are wanted")
    outputs, inputs = weights.shape[:2]
    indptr = convolution_indptr(inputs, outputs, height, width)
    indices = convolution_indices(inputs, outputs, height, width, indptr)
    data = convolution_data(weights, height, width, indptr)
    pixels = height * width
    return Sparse.from_csr(data, indices, indptr, (inputs * pixels, outputs * pixels))


def relu(x: Array) -> Sparse:
    """The transposed Jacobian of ReLU at the ravelled input ``x``.

    Source: BPPSA Algorithms 5 to 7.

    Example:
      >>> import jax.numpy as jnp
      >>> from bench.paper import paper_csr
      >>> paper_csr.relu(jnp.array([-1.0, 2.0])).data.tolist()
      [0.0, 1.0]
    """
    if x.ndim != 1:
        raise ValueError(f"x: got shape {tuple(x.shape)}; one axis is wanted")
    indptr, indices = np.arange(x.size + 1), np.arange(x.size)
    return Sparse.from_csr((x > 0).astype(x.dtype), indices, indptr, (x.size, x.size))


def max_pool(pool_indices: np.ndarray, height: int, width: int) -> Sparse:
    """The transposed Jacobian of max-pooling whose windows do not overlap.

    Args:
      pool_indices: (channels, output height, output width), for each output the flat index of
        the pixel it takes, in its own channel; concrete: the pattern is made of it.
      height, width: of the input.

    Returns:
      (channels height width) x (outputs), one entry for each output.

    Raises:
      ValueError: if a pixel is taken twice, or does not exist.

    Source: BPPSA Algorithms 8 to 10.

    Example:
      >>> import numpy as np
      >>> from bench.paper import paper_csr
      >>> paper_csr.max_pool(np.array([[[1, 2]]]), 1, 4).as_dense().tolist()
      [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    pool_indices = np.asarray(pool_indices)
    indptr, mapping = max_pool_indptr(pool_indices, height, width)
    outputs = pool_indices.size
    data = jnp.ones(outputs)  # Algorithm 10
    return Sparse.from_csr(data, max_pool_indices(mapping), indptr, (mapping.size, outputs))


def convolution_indptr(inputs: int, outputs: int, height: int, width: int) -> np.ndarray:
    """(inputs height width + 1,), Algorithm 2."""
    a, b = np.divmod(np.arange(inputs * height * width + 1), height * width)
    top = 6 * outputs * b
    middle = outputs * (6 * width + 9 * (b - width))
    bottom = outputs * (6 * width + 9 * width * (height - 2) + 6 * (b - width * (height - 1)))
    within = np.where(b <= width, top, np.where(b <= width * (height - 1), middle, bottom))
    return a * outputs * 3 * width * (3 * height - 2) + within


def convolution_indices(
    inputs: int, outputs: int, height: int, width: int, indptr: np.ndarray
) -> np.ndarray:
    """The columns of every row, ascending, Algorithm 3."""
    indices = np.empty(indptr[-1], np.int64)
    for rows, columns, _ in _image_rows(inputs, outputs, height, width):
        _fill(indices, indptr, rows, np.sort(columns))
    return indices


def convolution_data(weights: Array, height: int, width: int, indptr: np.ndarray) -> Array:
    """The numbers in the order of the columns, Algorithm 4."""
    outputs, inputs = weights.shape[:2]
    place = np.empty(indptr[-1], np.int64)
    inside = np.empty(indptr[-1], bool)
    for rows, columns, taps in _image_rows(inputs, outputs, height, width):
        order = np.argsort(columns)
        # (out, in, 3, 3) ravelled; the taps are those of the first input channel.
        channel = rows // (height * width)
        own = (taps.ravel() + 9 * channel[:, None])[np.arange(len(rows))[:, None], order]
        _fill(place, indptr, rows, own)
        # Line 6: at the left and right edge a column of neighbours does not exist.
        step = (2 - taps % 3 - 1).ravel() + (rows % width)[:, None]
        _fill(inside, indptr, rows, np.take_along_axis((step >= 0) & (step < width), order, 1))
    return jnp.where(inside, jnp.ravel(weights)[place], 0)


def max_pool_indptr(pool_indices: np.ndarray, height: int, width: int) -> Csr:
    """(channels height width + 1,), and for each input the output that takes it or -1: Algorithm 8.

    Raises:
      ValueError: if a pixel is taken twice, or does not exist.
    """
    channels = pool_indices.shape[0]
    pixels = np.reshape(pool_indices, (channels, -1))
    if pixels.size and not 0 <= pixels.min() <= pixels.max() < height * width:
        raise ValueError(f"pool_indices: a pixel lies outside of the image of {height}x{width}")
    mapping = np.full(channels * height * width, -1)
    mapping[(np.arange(channels)[:, None] * height * width + pixels).ravel()] = np.arange(
        pixels.size
    )
    if (mapping >= 0).sum() != pixels.size:
        raise ValueError("pool_indices: a pixel is taken twice; windows must not overlap")
    return np.concatenate([[0], np.cumsum(mapping >= 0)]), mapping


def max_pool_indices(mapping: np.ndarray) -> np.ndarray:
    """The column of each entry, Algorithm 9."""
    return mapping[mapping >= 0]


def _image_rows(inputs: int, outputs: int, height: int, width: int):
    """For the top, middle and bottom of the images: (rows of the matrix, their columns, taps).

    Columns (rows, entries) in the order [output channel, image row k - 1, image column -1..1]
    of Algorithm 3; taps are the places of the weights (out, 1, 3, 3) in that order, the image
    rows and columns of a weight being reversed (Algorithm 4, line 5).
    """
    pixels = height * width
    r = np.arange(pixels)
    line = r // width
    for inside, used in (
        (line == 0, [1, 2]),
        ((line > 0) & (line < height - 1), [0, 1, 2]),
        (line == height - 1, [0, 1]),
    ):
        k = np.array(used)[:, None]
        j = np.arange(outputs)[:, None, None]
        base = (np.arange(-1, 2) + (j * height + k - 1) * width).ravel()
        taps = j * inputs * 9 + (2 - k) * 3 + np.arange(2, -1, -1)
        rows = (np.arange(inputs)[:, None] * pixels + r[inside]).ravel()
        yield rows, (base + (rows % pixels)[:, None]) % (outputs * pixels), taps


def _fill(array: np.ndarray, indptr: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """``array[indptr[i] : indptr[i + 1]] = values`` for rows of one length."""
    array[indptr[rows][:, None] + np.arange(values.shape[1])] = values
