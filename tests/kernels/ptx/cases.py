"""What is executed from its PTX: every kernel, in float32 and bfloat16, at sizes of every kind."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.cells.fused import FusedCell
from parscan_bp.kernels import fused_recurrence, reference
from parscan_bp.kernels.rule import Rule
from tests.kernels import kernel_cases, recurrence_cases

TOLERANCE = 2e-6
"""Of the largest number of its kind."""
CHUNK = 3

# (structure, T, B, H, dtype): kernels of lanes; maps of 8, 4 and 1 to a warpgroup; of columns, and
# above their sizes; orders that are padded, samples that do not fill an instance, odd lengths.
SCANS = [
    ("diagonal", 7, 3, 20, "float32"),
    ("diagonal", 6, 1, 5, "bfloat16"),
    ("dense", 7, 3, 1, "float32"),
    ("dense", 7, 3, 4, "bfloat16"),
    ("dense", 4, 2, 10, "float32"),
    ("dense", 7, 3, 13, "float32"),
    ("dense", 6, 9, 20, "float32"),
    ("dense", 6, 9, 24, "bfloat16"),
    ("dense", 5, 2, 33, "float32"),
    ("dense", 4, 1, 128, "bfloat16"),
    ("weighted", 7, 3, 1, "float32"),
    ("weighted", 7, 2, 4, "bfloat16"),
    ("weighted", 7, 9, 20, "float32"),
    ("weighted", 6, 2, 31, "bfloat16"),
    ("weighted", 4, 1, 47, "float32"),
    ("weighted", 4, 1, 100, "bfloat16"),
    ("gru", 7, 3, 3, "float32"),
    ("gru", 6, 9, 20, "bfloat16"),
    ("gru", 6, 2, 28, "float32"),
    ("gru", 4, 1, 64, "float32"),
    ("lstm", 7, 3, 6, "float32"),
    ("lstm", 6, 2, 40, "bfloat16"),
    ("lstm", 4, 1, 66, "float32"),
]

# (cell, which rule, T, B, H, dtype): weights in registers, read in slices, with sums and without;
# several samples to an instance, by four warps and each by its own; a step, fewer than a round has,
# and rounds that are full or not, of one, two and eight steps; steps side by side in memory.
RECURRENCES = [
    ("elman", "forward", 21, 2, 20, "float32"),
    ("elman", "forward", 1, 1, 1, "float32"),
    ("elman", "forward", 19, 1, 32, "float32"),
    ("elman", "forward", 3, 1, 148, "float32"),
    ("elman", "forward", 4, 2, 200, "bfloat16"),
    ("elman", "backward", 1, 1, 4, "float32"),
    ("elman", "backward", 21, 5, 20, "float32"),
    ("elman", "backward", 9, 2, 36, "float32"),
    ("elman", "backward", 3, 299, 20, "float32"),
    ("elman", "backward", 5, 1, 65, "bfloat16"),
    ("elman", "backward", 5, 1, 224, "float32"),
    ("elman", "of_last", 21, 2, 20, "float32"),
    ("relu", "forward", 9, 3, 5, "bfloat16"),
    ("relu", "backward", 9, 3, 5, "float32"),
    ("gru", "forward", 13, 6, 20, "float32"),
    ("gru", "forward", 18, 3, 24, "bfloat16"),
    ("gru", "forward", 3, 1, 128, "float32"),
    ("gru", "backward", 13, 2, 20, "float32"),
    ("gru", "backward", 17, 1, 61, "bfloat16"),
    ("gru", "of_last", 10, 1, 7, "float32"),
    ("gru_one_bias", "forward", 12, 1, 4, "float32"),
    ("gru_one_bias", "backward", 3, 2, 33, "float32"),
    ("lstm", "forward", 11, 2, 20, "float32"),
    ("lstm", "forward", 3, 1, 127, "bfloat16"),
    ("lstm", "backward", 11, 2, 20, "float32"),
    ("lstm", "backward", 3, 1, 100, "float32"),
    ("lstm", "of_last", 9, 3, 9, "bfloat16"),
]


def scan(
    structure: str, length: int, batch: int, size: int, dtype: str, chunk: int = CHUNK
) -> None:
    """Runs and checks a scan of kernels against its float64 solution."""
    reverse = length % 2 == 1
    how = {"reverse": reverse, "dtype": jnp.dtype(dtype)}
    case = kernel_cases.draw(structure, length, batch, size, **how)
    case.check(case.scan(*case.args, radices=[chunk], reverse=reverse), TOLERANCE)


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """Random arguments of a recurrence of kernels."""

    rule: Rule
    args: tuple[Any, ...]
    reverse: bool

    def check(self) -> None:
        """Values, and the sums where it makes them, against the reference in float64."""
        out, sums = fused_recurrence(self.rule, *self.args, reverse=self.reverse)
        with jax.enable_x64(True):
            exact = [jnp.asarray(np.asarray(a, np.float64)) for a in self.args]
            want, want_sums = reference.recurrence(self.rule, *exact, reverse=self.reverse)
        _close(out, want)
        if sums is not None:
            for pair in zip(sums, want_sums, strict=True):
                _close(*pair)


def recurrence(cell: str, which: str, length: int, batch: int, size: int, dtype: str) -> Recurrence:
    form = FusedCell(recurrence_cases.CELLS[cell])
    rules = {"forward": form.forward_rule, "backward": form.backward_rule}
    rule = rules.get(which, form.backward_rule_of_last)
    rng = np.random.default_rng([length, batch, size])
    v = 0.5 * rng.normal(size=(length, batch, rule.inputs, size))
    w = 0.9 * rng.normal(size=(rule.operands, rule.products, size, size))
    first = 0.5 * rng.normal(size=(batch, rule.starts, size))
    args = jnp.float32(v), jnp.asarray(w / np.sqrt(size * rule.operands), dtype), jnp.float32(first)
    return Recurrence(rule, args, which != "forward")


def _close(got: Any, want: Any) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want)
    scale = np.abs(want).max()
    np.testing.assert_allclose(got / scale, want / scale, 0, TOLERANCE)
