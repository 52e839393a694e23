"""Compiles every kernel for sm_90a without a GPU: ``python compile_for_sm90.py``.

What ptxas says about registers and spills goes to the standard output, after a line ``## case`` for
each case, and so does the machine code where there is an nvdisasm. See `sm90`.
"""

import os
import shutil

os.environ |= {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_PTXAS": "1"}
if shutil.which("nvdisasm") is not None:
    os.environ["MOSAIC_GPU_DUMP_SASS"] = "1"

import functools

import jax
import jax.numpy as jnp
import sm90

from parscan_bp import cells, kernels
from parscan_bp.cells.fused import FusedCell

LENGTH, CHUNK = 64, 16
SCANS = {
    "diagonal": [(64, 16)],
    "dense": [(4, 64), (10, 64), (20, 4), (20, 16), (32, 4), (64, 4), (128, 4)],
    "weighted": [(20, 16), (20, 1024), (32, 1024), (45, 1024), (46, 4), (128, 4)],
    "gru": [(20, 1024), (26, 1024), (27, 4), (64, 4), (96, 4)],
    "lstm": [(20, 1024), (44, 1024), (46, 4), (96, 4)],
}
CELLS = {cells.Elman(): (224, 224), cells.GRU(): (128, 128), cells.LSTM(): (108, 100)}
"""The largest weights in float32 of each, forward and backward."""


def _shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _scan(structure, size, batch):
    vectors = (LENGTH, batch, size)
    how = {"radices": [CHUNK], "reverse": True}
    if structure == "diagonal":
        flat = _shape(LENGTH, batch * size)
        return kernels.diagonal_scan, (flat, flat, _shape(batch * size)), how
    start = _shape(batch, size)
    if structure == "dense":
        return kernels.dense_scan, (_shape(*vectors, size), _shape(*vectors), start), how
    if structure == "weighted":
        args = _shape(size, size), _shape(*vectors), _shape(*vectors), start
        return kernels.weighted_scan, args, how
    count, states = {"gru": (3, 1), "lstm": (4, 2)}[structure]
    units = size // states
    args = (
        _shape(units, count * units),
        _shape(LENGTH, batch, count, states, units),
        _shape(LENGTH, batch, states, states, units),
        _shape(LENGTH, batch, states, units),
        _shape(batch, states, units),
    )
    return kernels.factored_scan, args, how


def _recurrence(rule, size, batch):
    args = (
        _shape(LENGTH, batch, rule.inputs, size),
        _shape(rule.operands, rule.products, size, size),
        _shape(batch, rule.starts, size),
    )
    return (lambda *args: kernels.fused_recurrence(rule, *args)), args, {}


def cases():
    """(name, function, shapes, options) of every compilation."""
    for structure, sizes in SCANS.items():
        for size, batch in sizes:
            yield f"{structure} {size} {batch}", *_scan(structure, size, batch)
    for cell, (forward, backward) in CELLS.items():
        form = FusedCell(cell)
        rules = {
            form.forward_rule: forward,
            form.backward_rule: backward,
            form.backward_rule_of_last: backward,
        }
        for rule, most in rules.items():
            for size, batch in [(20, 16), (24, 300), (32, 16), (32, 300), (64, 16), (most, 16)]:
                yield f"{rule.name} {size} {batch}", *_recurrence(rule, size, batch)


def main():
    for name, function, shapes, how in cases():
        print("##", name, flush=True)
        sm90.compiled(functools.partial(function, **how), shapes)
    print("## done", flush=True)


if __name__ == "__main__":
    main()
